"""A client's own model from one round of a run to the next, in a file: in deployment every message is a new process.

One file per run and client. It goes when the last round is done; those of interrupted runs stay, and may be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedstats_app.storage.files import read_tensors, tensors_to_bytes, write_atomically
from fedstats_app.training.model import TunedModel

logger = logging.getLogger("fedstats_app")

_ROUND = "round"


@dataclass(frozen=True)
class OwnModel:
    """What is kept of a client's model during a run.

    Attributes
    ----------
    path : Path
        The file.
    """

    path: Path

    @classmethod
    def of(cls, root: Path, run_id: int, client: int) -> OwnModel:
        """Return a client's under the folder of what lasts on a node."""
        return cls(root / f"{run_id}-{client}.safetensors")

    def save(self, tensors: Mapping[str, Tensor], server_round: int) -> None:
        """Replace what is kept by the model of a round.

        Raises
        ------
        OSError
            If it cannot be written; what was there before stays.
        """
        # What a model learned from few samples can be read from it: only this user may.
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.path, tensors_to_bytes(tensors, {_ROUND: str(server_round)}, digest=True))

    def resume(self, model: TunedModel, server_round: int) -> bool:
        """Load what is kept if it is of this round, and return whether it is; if not, the log says why.

        Parameters
        ----------
        model : TunedModel
            Of the same kind as the one that was saved; changed in place.
        server_round : int
            The round after which it must have been saved: an older one would not be what the server thinks it is.
        """
        if not self.path.is_file():
            logger.warning("%s is not there: the client starts again", self.path)
            return False
        try:
            tensors, metadata = read_tensors(self.path)
            if metadata.get(_ROUND) != str(server_round):
                raise ValueError(f"it is of round {metadata.get(_ROUND)}, not of round {server_round}")
            model.load_trained_state(tensors)
        except ValueError as error:
            logger.warning("%s cannot be used, the client starts again: %s", self.path, error)
            return False
        return True

    def forget(self) -> None:
        """Delete what is kept, if there is something."""
        self.path.unlink(missing_ok=True)
