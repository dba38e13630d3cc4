"""What a node keeps of a FedMeZO training from message to message: the start, the log and the replica.

In a simulation worker processes live on: the replica is in memory and shared by all clients of a worker, and the files,
shared by the workers, hold the start and the log, so that a worker that was not asked in some rounds can follow, and a
new one begins from a snapshot. On a real SuperNode every message is a new process, and the replica is a file too. Files
are written in one step and checked by digest; one that is missing or wrong is made up for by replaying the log.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstats_app.storage.files import write_atomically
from fedstats_app.storage.tensor_file import read_tensors, tensors_to_bytes
from fedstats_app.training.zeroth_order.log import Update, pack_updates, unpack_updates
from fedstats_app.training.zeroth_order.perturbation import How
from fedstats_app.training.zeroth_order.replica import Replica

logger = logging.getLogger("fedstats_app")

PREFIX = "mezo-"
# What simulated clients share stays behind when a run ends (no client knows which of them is the last), for so long.
KEPT_SECONDS = 7 * 24 * 3600.0
_SETUP, _LOG, _REPLICA = "start.safetensors", "log.bin", "replica.safetensors"
_HOW, _RATES = "perturbed", "rates.json"


@dataclass(frozen=True)
class MezoState:
    """The files of one training on one node.

    Attributes
    ----------
    folder : Path
        Its own folder.
    """

    folder: Path

    @classmethod
    def of(cls, root: Path, run_id: int, training: int, owner: str) -> MezoState:
        """Return the state of a training, for a node or for all simulated clients on a machine."""
        return cls(root / f"{PREFIX}{run_id}-{training}-{owner}")

    # The start

    def save_start(self, setup: dict[str, Any], start: dict[str, Tensor]) -> None:
        """Keep what the training starts from; whatever was kept of it before is gone."""
        self._make_folder()
        for name in (_LOG, _REPLICA, _RATES):
            (self.folder / name).unlink(missing_ok=True)
        data = tensors_to_bytes(start, {"setup": json.dumps(setup)}, digest=True)
        write_atomically(self.folder / _SETUP, data)

    def load_start(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Return setup and start, or None where they are missing or damaged; the log says which."""
        path = self.folder / _SETUP
        if not path.is_file():
            return None
        try:
            tensors, metadata = read_tensors(path)
            return json.loads(metadata["setup"]), tensors
        except (ValueError, KeyError) as error:
            logger.warning("%s cannot be used, and is asked for again: %s", path, error)
            return None

    # The log

    def extend_log(self, updates: Sequence[Update], first_round: int) -> None:
        """Add the updates of the rounds from ``first_round`` on, those that are not there yet."""
        num_directions = len(updates[0].steps) if updates else 1
        known = self.load_log(num_directions)
        missing = updates[max(len(known) - first_round + 1, 0) :]
        if first_round - 1 > len(known) or not missing:
            return
        self._make_folder()
        write_atomically(self.folder / _LOG, pack_updates(known) + pack_updates(missing))

    def replace_log(self, updates: Sequence[Update]) -> None:
        """Keep these updates, from round 1 on, instead of those that are there."""
        self._make_folder()
        write_atomically(self.folder / _LOG, pack_updates(updates))

    def load_log(self, num_directions: int) -> list[Update]:
        """Return the updates of rounds 1, 2, ... that are known; none where the file is missing or damaged."""
        path = self.folder / _LOG
        try:
            return unpack_updates(path.read_bytes(), num_directions) if path.is_file() else []
        except ValueError as error:
            logger.warning("%s cannot be used: %s", path, error)
            return []

    # The server's learning rates

    def save_rates(self, rates: Mapping[int, float]) -> None:
        """Keep in which rounds the learning rate was changed, and to what."""
        self._make_folder()
        write_atomically(self.folder / _RATES, json.dumps(dict(rates)).encode())

    def load_rates(self) -> dict[int, float]:
        """Return what :meth:`save_rates` kept; nothing if it was never changed."""
        path = self.folder / _RATES
        kept = json.loads(path.read_text()) if path.is_file() else {}
        return {int(number): float(rate) for number, rate in kept.items()}

    # The replica

    def save_replica(self, replica: Replica) -> None:
        """Keep the tuned parameters (of a finite pool, its sums of steps) with their round and digest."""
        self._make_folder()
        metadata = {"round": str(replica.round), "digest": replica.digest().hex()}
        write_atomically(self.folder / _REPLICA, tensors_to_bytes(replica.state(), metadata, digest=True))

    def load_replica(self, replica: Replica, before: int) -> bool:
        """Turn a replica at the start into the one that is kept, and return whether there is a sound one.

        Parameters
        ----------
        replica : Replica
            At the start. If the file turns out to be damaged, it may have changed; its round is then not 0.
        before : int
            A replica of this round or a later one is of no use.
        """
        path = self.folder / _REPLICA
        if not path.is_file():
            return False
        try:
            tensors, metadata = read_tensors(path)
            if int(metadata["round"]) >= before:
                return False
            replica.load(tensors, int(metadata["round"]))
            if replica.digest().hex() != metadata["digest"]:
                raise ValueError("its parameters have another digest")
        except (ValueError, KeyError) as error:
            logger.warning("%s cannot be used, the log is replayed: %s", path, error)
            return False
        return True

    # How the model is perturbed

    @property
    def how(self) -> How:
        """What was found to work when the training began; "auto" before that."""
        path = self.folder / _HOW
        found = path.read_text() if path.is_file() else ""
        return "read" if found == "read" else "copy" if found == "copy" else "auto"

    def save_how(self, how: How) -> None:
        """Keep it for the messages to come: in deployment each of them is a new process."""
        self._make_folder()
        write_atomically(self.folder / _HOW, how.encode())

    def forget(self) -> None:
        """Delete everything that is kept of the training."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_folder(self) -> None:
        # What a model learned from few samples can be read from it: only this user may.
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def forget_old(root: Path) -> None:
    """Delete what simulations of long ago have left under a folder."""
    for folder in root.glob(f"{PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime > KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
