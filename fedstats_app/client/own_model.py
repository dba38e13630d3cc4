"""A client's own model from one round of a run to the next, in a file: in deployment every message is a new process.

One file per run and client. It goes when the last round is done; those of interrupted runs stay, and may be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedstats_app.storage.files import write_atomically
from fedstats_app.storage.tensor_file import read_tensors, tensors_to_bytes
from fedstats_app.training.model import TunedModel

logger = logging.getLogger("fedstats_app")

_ROUND = "round"


def state_file(root: Path, run_id: int, client: int) -> Path:
    """Return where a client's model is kept during a run."""
    return root / f"{run_id}-{client}.safetensors"


def save_state(path: Path, tensors: Mapping[str, Tensor], server_round: int) -> None:
    """Replace the model kept at ``path`` by that of a round.

    Raises
    ------
    OSError
        If it cannot be written; what was there before stays.
    """
    # What a model learned from few samples can be read from it: only this user may.
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, tensors_to_bytes(tensors, {_ROUND: str(server_round)}, digest=True))


def resume(model: TunedModel, path: Path, server_round: int) -> bool:
    """Load the model kept at ``path`` if it is that of this round, and return whether it is; if not, the log says why.

    Parameters
    ----------
    model : TunedModel
        Of the same kind as the one that was saved; changed in place.
    path : Path
        As :func:`state_file` gives it.
    server_round : int
        The round after which it must have been saved: an older one would not be what the server thinks it is.
    """
    if not path.is_file():
        logger.warning("%s is not there: the client starts again", path)
        return False
    try:
        tensors, metadata = read_tensors(path)
        if metadata.get(_ROUND) != str(server_round):
            raise ValueError(f"it is of round {metadata.get(_ROUND)}, not of round {server_round}")
        model.load_trained_state(tensors)
    except ValueError as error:
        logger.warning("%s cannot be used, the client starts again: %s", path, error)
        return False
    return True


def forget_state(path: Path) -> None:
    """Delete the model kept at ``path``, if there is one."""
    path.unlink(missing_ok=True)
