"""Reading of targets from tables: several labels a sample, as 0 and 1, or numbers; NaN where one is unknown."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.columns import Reading, choose_label, numbers_in, some_columns
from fedstats_app.data.dataset import DatasetError
from fedstats_app.data.targets import Targets

if TYPE_CHECKING:
    import datasets

_MARKS = {"1": 1.0, "1.0": 1.0, "true": 1.0, "0": 0.0, "0.0": 0.0, "false": 0.0}
_UNKNOWN = frozenset({"", "-1", "-1.0", "none", "nan"})


def read_targets(
    table: datasets.Dataset, reading: Reading, samples: Collection[str], *, owner: str
) -> tuple[tuple[str, ...], Targets, tuple[str, ...]] | None:
    """Return the names of a table's targets, the targets and their columns; None where a sample has one class.

    ``samples`` are the columns of the image or the text.

    Raises
    ------
    DatasetError
        If a cell holds no target of its kind, or there is no such column.
    """
    if reading.target_column and reading.label_columns:
        raise DatasetError(f"{owner}: name label-columns or target-column, not both")
    if wanted := reading.target_column or reading.label_columns:
        names = some_columns(table, wanted, role="target" if reading.target_column else "label", owner=owner)
        read = _number if reading.target_column else _marks(reading)
        values = np.stack([_column(table, name, read, owner) for name in names], axis=1)
        kind: Literal["labels", "numbers"] = "numbers" if reading.target_column else "labels"
        return names, Targets(kind, values), names
    column = choose_label(table, reading, samples, owner=owner)
    listed = isinstance(table[column][:1][0] if len(table) else None, list) or _is_list(table.features[column])
    if not (listed or reading.label_separator):
        return None
    return (*_lists(table, column, reading, owner), (column,))


def _is_list(feature: Any) -> bool:
    return isinstance(feature, list) or type(feature).__name__ in ("List", "LargeList", "Sequence")


def _lists(table: datasets.Dataset, column: str, reading: Reading, owner: str) -> tuple[tuple[str, ...], Targets]:
    """Read a column of lists, or of labels in one text; nothing in a cell of text says what an empty cell does."""
    given = getattr(getattr(table.features[column], "feature", None), "names", None)
    rows: list[set[str] | None] = []
    for cell in table[column][:]:
        if isinstance(cell, list):
            held = (value if given is None else given[value] for value in cell if value is not None)
            rows.append({str(value).strip() for value in held} - {""})
        elif cell is None or not str(cell).strip():
            rows.append(None)
        else:
            rows.append({part.strip() for part in str(cell).split(reading.label_separator)} - {""})
    found = {name for row in rows for name in row or ()}
    numbered = all(name.isdecimal() for name in found)
    names = tuple(given or sorted(found, key=int if numbered else str))
    if not names:
        raise DatasetError(f"{owner}: no row has a label in {column!r}")
    position = {name: place for place, name in enumerate(names)}
    values = np.zeros((len(rows), len(names)))
    for values_of_row, row in zip(values, rows, strict=True):
        if row is None and reading.missing_labels == "unknown":
            values_of_row[:] = np.nan
        for name in row or ():
            values_of_row[position[name]] = 1.0
    return names, Targets("labels", values, absent=0.0)


def _column(table: datasets.Dataset, name: str, read: Callable[[object], float], owner: str) -> NDArray[np.float64]:
    values, wrong = np.empty(len(table)), []
    for place, cell in enumerate(table[name][:]):
        try:
            values[place] = read(cell)
        except ValueError:
            wrong.append(f"{cell!r}"[:40])
    if wrong:
        allowed = "a number, or nothing" if read is _number else "0, 1, -1 or nothing"
        raise DatasetError(f"{owner}: a cell of {name!r} must hold {allowed}, got {wrong[0]} in {len(wrong)} of them")
    return values


def _marks(reading: Reading) -> Callable[[object], float]:
    unknown = np.nan if reading.missing_labels == "unknown" else 0.0

    def read(cell: object) -> float:
        text = str(cell).strip().casefold()
        if text not in _MARKS and text not in _UNKNOWN:
            raise ValueError
        return _MARKS.get(text, unknown)

    return read


def _number(cell: object) -> float:
    if cell is None or cell != cell or str(cell).strip() == "":
        return np.nan
    found = numbers_in([cell.strip() if isinstance(cell, str) else cell])
    if found is None:
        raise ValueError
    return float(found[0])
