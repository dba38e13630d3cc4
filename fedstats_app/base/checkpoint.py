"""Checkpoints of a training: the model, the optimiser's state and the absolute round, one safetensors file each."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstats_app.base.files import read_tensors, refusing_others, tensors_to_bytes, to_json, write_atomically

CHECKPOINT_FORMAT = "fedstats-checkpoint-1"
_KEPT = 2  # the newest may turn out to be damaged
_FILE = re.compile(r"round-(\d{6,})\.safetensors")
_UNFINISHED = ".round-*.tmp"
_ARRAYS, _OPTIMIZER = "arrays/", "optimizer/"

_logger = logging.getLogger("fedstats_app")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """State from which a training continues: model and server optimiser after the last finished round.

    Tensors are on the CPU, in the dtypes that were saved; rounds are absolute numbers.
    """

    path: Path
    round: int
    arrays: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    metadata: dict[str, Any]


def save_checkpoint(
    folder: Path,
    round: int,
    arrays: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    metadata: Mapping[str, Any],
) -> Path:
    """Write a checkpoint in one step and keep only the one of the round before it besides.

    The folder is of one training and one process, and made if it does not exist. Tensors are kept to the bit, in any
    dtype; the metadata are written as JSON by `fedstats_app.base.files.to_json`'s rules.

    Raises
    ------
    TypeError
        If something in `metadata` has no JSON form.
    OSError
        If the file cannot be written; earlier checkpoints are untouched.
    """
    if round < 0:
        raise ValueError(f"round must be at least 0, got {round}")
    groups = ((_ARRAYS, arrays), (_OPTIMIZER, optimizer))
    tensors = {prefix + name: tensor for prefix, group in groups for name, tensor in group.items()}
    header = {"format": CHECKPOINT_FORMAT, "round": str(round), "metadata": to_json(metadata, indent=None)}
    content = tensors_to_bytes(tensors, header, digest=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{round:06d}.safetensors"
    write_atomically(path, content)
    # Those of later rounds go too: they were damaged, or training would not have come by here again.
    kept = [number for number in _files(folder) if number <= round][:_KEPT]
    for number, old in _files(folder).items():
        if number not in kept:
            old.unlink()
    for unfinished in folder.glob(_UNFINISHED):  # of a process that was killed while it wrote
        unfinished.unlink()
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises
    ------
    ValueError
        If the file is damaged (its digest is checked) or no checkpoint of this format.
    """
    tensors, header = read_tensors(path)
    if header.get("format") != CHECKPOINT_FORMAT:
        raise ValueError(f"{path}: format must be {CHECKPOINT_FORMAT!r}, got {header.get('format')!r}")
    arrays, optimizer = (
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in (_ARRAYS, _OPTIMIZER)
    )
    with refusing_others(path, "a checkpoint"):
        return Checkpoint(path, int(header["round"]), arrays, optimizer, json.loads(header["metadata"]))


def latest_checkpoint(folder: Path) -> Checkpoint | None:
    """Read the newest checkpoint of a training that can be read, or None; a damaged one is named in the log.

    Raises
    ------
    ValueError
        If there are checkpoints but every one is damaged: whether to begin anew is the user's decision.
    """
    damaged = []
    for path in _files(folder).values():
        try:
            return read_checkpoint(path)
        except ValueError as error:
            _logger.warning("checkpoint left out, the one before it is taken if there is one: %s", error)
            damaged.append(path.name)
    if damaged:
        raise ValueError(f"{folder}: every checkpoint is damaged: {', '.join(damaged)}; delete them to begin anew")
    return None


def _files(folder: Path) -> dict[int, Path]:
    """Return the checkpoints by round, newest first."""
    found = {int(match[1]): path for path in folder.glob("round-*") if (match := _FILE.fullmatch(path.name))}
    return dict(sorted(found.items(), reverse=True))
