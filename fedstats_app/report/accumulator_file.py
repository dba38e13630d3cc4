"""What stage 1 has summed so far, for a run that is interrupted: `checkpoints/statistics.safetensors` in its folder.

Sums in the form of `statistics.safetensors`, and other tensors, by name, and a record in JSON in the header. The file
is as sensitive as that one, readable by its owner only, and deleted when stage 1 is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstats_app.report.statistics_file import READABLE_BY_OWNER, sum_from_tensors, sum_to_tensors
from fedstats_app.statistics import StatisticsSum
from fedstats_app.storage.files import read_tensors, to_json, write_tensors

ACCUMULATOR_FORMAT = "fedstats-accumulator-1"
ACCUMULATOR_FILE = "checkpoints/statistics.safetensors"
_TENSORS = "tensors"


@dataclass(frozen=True, eq=False)
class Accumulated:
    """What there is of a stage 1.

    Attributes
    ----------
    sums : mapping
        By name, without dots; their dtypes are kept.
    tensors : mapping
        By name.
    record : mapping
        Whatever else, by the rules of `fedstats_app.storage.files.to_json`.
    """

    sums: Mapping[str, StatisticsSum]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)


def save_accumulated(folder: Path, accumulated: Accumulated) -> None:
    """Write the file in one step.

    Parameters
    ----------
    folder : Path
        A run folder.
    accumulated : Accumulated
        Everything.

    Raises
    ------
    OSError
        If it cannot be written; the one before it is untouched.
    """
    tensors = {f"{_TENSORS}.{name}": tensor for name, tensor in accumulated.tensors.items()}
    for name, total in accumulated.sums.items():
        tensors |= {f"{name}.{key}": tensor for key, tensor in sum_to_tensors(total).items()}
    numbers = {name: [total.num_rows, total.num_pairs] for name, total in accumulated.sums.items()}
    metadata = {
        "format": ACCUMULATOR_FORMAT,
        "rows-and-pairs": json.dumps(numbers),
        "record": to_json(accumulated.record, indent=None),
    }
    path = folder / ACCUMULATOR_FILE
    path.parent.mkdir(exist_ok=True)
    write_tensors(path, tensors, metadata, mode=READABLE_BY_OWNER)


def load_accumulated(folder: Path) -> Accumulated | None:
    """Return what :func:`save_accumulated` wrote, to the bit; None where there is nothing.

    Raises
    ------
    ValueError
        If the file is damaged or of another format.
    """
    path = folder / ACCUMULATOR_FILE
    if not path.is_file():
        return None
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != ACCUMULATOR_FORMAT:
        raise ValueError(f"{path}: format must be {ACCUMULATOR_FORMAT!r}, got {metadata.get('format')!r}")
    numbers: dict[str, list[int]] = json.loads(metadata["rows-and-pairs"])
    sums = {name: sum_from_tensors(tensors, name, numbers[name]) for name in numbers}
    prefix = f"{_TENSORS}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return Accumulated(sums, own, json.loads(metadata["record"]))


def forget_accumulated(folder: Path) -> None:
    """Delete the file, if there is one, and its folder where nothing else is in it."""
    path = folder / ACCUMULATOR_FILE
    path.unlink(missing_ok=True)
    with suppress(OSError):  # trainings keep their checkpoints there
        path.parent.rmdir()
