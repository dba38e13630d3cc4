"""The log of a zeroth-order training, and the files of one.

The log has a seed and a few scalars a round, which turn the start into the tuned model. Files are written in one step
and checked by digest. A server ends with an error that names a damaged one; a node asks the server for its content.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstats_app.base.files import read_tensors, tensors_to_bytes, write_atomically

_START, _LOG, _REPLICA = "start.safetensors", "log.bin", "replica.safetensors"

SEED_LIMIT = 2**63

# Before the updates: 17 bytes and the updates' SHA-256.
_MAGIC, _DIGEST_BYTES = b"fedstats-mezo-1\n\0", 32


@dataclass(frozen=True)
class Update:
    """Change of all replicas in one round: theta <- theta - sum_p steps[p] z_p.

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

    def save_start(self, setup: Mapping[str, Any], start: Mapping[str, Tensor]) -> None:
        """Store the start of the training, and delete everything else."""
        for path in self.folder.glob("[!.]*"):
            if path.name != _START:
                path.unlink(missing_ok=True)
        self.write(_START, tensors_to_bytes(start, {"setup": json.dumps(dict(setup))}, digest=True))

    def load_start(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Return setup and start, or None if there are none."""
        kept = self._read(_START, "setup")
        return None if kept is None else (json.loads(kept[1]["setup"]), kept[0])

    def save_log(self, updates: Sequence[Update]) -> None:
        """Keep the updates of rounds 1, 2, ..."""
        data = pack_updates(updates)
        self.write(_LOG, _MAGIC + hashlib.sha256(data).digest() + data)

    def load_log(self, num_directions: int) -> list[Update]:
        """Return the updates of rounds 1, 2, ...; none if there is no file."""
        path = self.folder / _LOG
        if not path.is_file():
            return []
        content = path.read_bytes()
        data = content[len(_MAGIC) + _DIGEST_BYTES :]
        if content[: -len(data) or None] != _MAGIC + hashlib.sha256(data).digest():
            raise ValueError(f"{path} is damaged: its updates have another SHA-256 than its header")
        try:
            return unpack_updates(data, num_directions)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error

    def save_replica(self, state: Mapping[str, Tensor], server_round: int) -> None:
        """Keep a replica's :meth:`~fedstats_app.fedmezo.replica.Replica.state` after a round."""
        self.write(_REPLICA, tensors_to_bytes(state, {"round": str(server_round)}, digest=True))

    def load_replica(self) -> tuple[dict[str, Tensor], int] | None:
        """Return the replica that :meth:`save_replica` kept and its round, or None if there is none."""
        kept = self._read(_REPLICA, "round")
        return None if kept is None else (kept[0], int(kept[1]["round"]))

    def write(self, name: str, data: bytes) -> None:
        """Replace one file of the training."""
        # A model that learned from few samples reveals something about them: only this user may read it.
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.folder / name, data)

    def _read(self, name: str, key: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        path = self.folder / name
        if not path.is_file():
            return None
        tensors, metadata = read_tensors(path)
        if key not in metadata:
            raise ValueError(f"{path} is damaged: its header lacks {key}")
        return tensors, metadata
