"""The log of a zeroth-order training, and the files of one.

The log has a seed and a few scalars a round, which turn the start into the tuned model. Files are written in one step
and checked by digest; a server ends with an error that names a damaged one, a node makes up for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fedstats_app.base.files import read_tensors, tensors_to_bytes, write_atomically

logger = logging.getLogger("fedstats_app")

Loaded = TypeVar("Loaded")

_START, _LOG, _REPLICA = "start.safetensors", "log.bin", "replica.safetensors"

SEED_LIMIT = 2**63

# Before the updates: 17 bytes and the updates' SHA-256.
_MAGIC, _DIGEST_BYTES = b"fedstats-mezo-1\n\0", 32


@dataclass(frozen=True)
class Update:
    """What all replicas do in one round: theta <- theta - sum_p steps[p] z_p.

    A step is learning rate x averaged difference quotient / number of directions, rounded once by the server; all are
    zero if nothing changes. A ValueError refuses none, one that is not finite, and a seed that is not in [0, 2^63).
    """

    seed: int
    steps: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEED_LIMIT:
            raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}")
        if not self.steps or not all(math.isfinite(step) for step in self.steps):
            raise ValueError(f"steps must be finite numbers, at least one, got {self.steps}")


def pack_updates(updates: Sequence[Update]) -> bytes:
    """Return updates as bytes: 8 a seed and 8 a step, little-endian."""
    return b"".join(struct.pack(f"<q{len(update.steps)}d", update.seed, *update.steps) for update in updates)


def unpack_updates(data: bytes, num_directions: int) -> list[Update]:
    """Return the updates that :func:`pack_updates` wrote; a ValueError says if the bytes cannot be updates."""
    entry = struct.Struct(f"<q{num_directions}d")
    if len(data) % entry.size:
        raise ValueError(f"updates of {num_directions} direction(s) take {entry.size} bytes each, got {len(data)}")
    return [Update(seed, tuple(steps)) for seed, *steps in entry.iter_unpack(data)]


@dataclass(frozen=True)
class TrainingFiles:
    """The files of one training, on a node or in a run folder, in a folder of its own; damage is a ValueError."""

    folder: Path
    # The state of the log's file after this process wrote it, and how many rounds it has; empty where it was read.
    _written: list[object] = field(default_factory=list, init=False, compare=False, repr=False)

    def save_start(self, setup: Mapping[str, Any], start: Mapping[str, Tensor]) -> None:
        """Keep what the training starts from; whatever was kept of it before is gone."""
        for path in self.folder.glob("[!.]*"):
            if path.name != _START:
                path.unlink(missing_ok=True)
        self.write(_START, tensors_to_bytes(start, {"setup": json.dumps(dict(setup))}, digest=True))

    def load_start(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Return setup and start, or None if there are none."""
        kept = self._read(_START, "setup")
        return None if kept is None else (json.loads(kept[1]["setup"]), kept[0])

    def extend_log(self, updates: Sequence[Update], first_round: int) -> None:
        """Add the updates of the rounds from ``first_round`` on, those that are not there yet."""
        last = first_round + len(updates) - 1
        # Of many clients in one process all but the first find them there, without reading the log again.
        if not updates or (self._written and self._written == [self._state_of_log(), last]):
            return
        known = self.load_log(len(updates[0].steps))
        missing = updates[max(len(known) - first_round + 1, 0) :]
        if first_round - 1 <= len(known) and missing:
            self.replace_log([*known, *missing])

    def replace_log(self, updates: Sequence[Update]) -> None:
        """Keep these updates, from round 1 on, instead of those that are there."""
        data = pack_updates(updates)
        self.write(_LOG, _MAGIC + hashlib.sha256(data).digest() + data)
        self._written[:] = [self._state_of_log(), len(updates)]

    def load_log(self, num_directions: int) -> list[Update]:
        """Return the updates of rounds 1, 2, ... that are known; none if there is no file."""
        self._written.clear()
        path = self.folder / _LOG
        if not path.is_file():
            return []
        content = path.read_bytes()
        data = content[len(_MAGIC) + _DIGEST_BYTES :]
        if content[: -len(data) or None] != _MAGIC + hashlib.sha256(data).digest():
            raise ValueError(f"{path} is damaged: its updates do not have the SHA-256 that it says")
        try:
            return unpack_updates(data, num_directions)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def _state_of_log(self) -> tuple[int, ...]:
        with contextlib.suppress(OSError):
            found = (self.folder / _LOG).stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
        return ()

    def save_replica(self, state: Mapping[str, Tensor], server_round: int, digest: bytes) -> None:
        """Keep a replica's :meth:`~fedstats_app.fedmezo.replica.Replica.state` with round and digest."""
        metadata = {"round": str(server_round), "digest": digest.hex()}
        self.write(_REPLICA, tensors_to_bytes(state, metadata, digest=True))

    def load_replica(self) -> tuple[dict[str, Tensor], int, bytes] | None:
        """Read the replica that :meth:`save_replica` kept, or None if there is none."""
        kept = self._read(_REPLICA, "round", "digest")
        return None if kept is None else (kept[0], int(kept[1]["round"]), bytes.fromhex(kept[1]["digest"]))

    def write(self, name: str, data: bytes) -> None:
        """Replace one file of the training."""
        # What a model learned from few samples can be read from it: only this user may.
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.folder / name, data)

    def _read(self, name: str, *keys: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        path = self.folder / name
        if not path.is_file():
            return None
        tensors, metadata = read_tensors(path)
        if missing := set(keys) - metadata.keys():
            raise ValueError(f"{path} is damaged: its header lacks {', '.join(sorted(missing))}")
        return tensors, metadata


class NodeFiles(TrainingFiles):
    """The files of a training on a node, which makes up for one that is damaged; the log says which."""

    def load_start(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """As the base's; None where it is damaged: the server sends it again."""
        return _unless_damaged(super().load_start, None, "it is asked for again")

    def load_log(self, num_directions: int) -> list[Update]:
        """As the base's; nothing where it is damaged: the server sends it again."""
        return _unless_damaged(lambda: super(NodeFiles, self).load_log(num_directions), [], "it is asked for again")

    def load_replica(self) -> tuple[dict[str, Tensor], int, bytes] | None:
        """As the base's; None where it is damaged: it follows from start and log."""
        return _unless_damaged(super().load_replica, None, "the log is replayed")


def _unless_damaged(load: Callable[[], Loaded], otherwise: Loaded, instead: str) -> Loaded:
    try:
        return load()
    except ValueError as error:
        logger.warning("a file cannot be used, %s: %s", instead, error)
        return otherwise
