"""Which column of a table is the image or the text, which the label, and what the classes are called."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.dataset import DatasetError, Kind, LazyColumns
from fedstats_app.data.layout import IMAGE_SUFFIXES

if TYPE_CHECKING:
    import datasets

IMAGE_COLUMNS = ("image", "img", "images", "pixel_values")
PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "filepaths", "file_path", "img_path", "image_path")
TEXT_COLUMNS = ("text", "sentence", "content", "question", "title", "review", "document")
LABEL_COLUMNS = ("label", "labels", "fine_label", "target", "class", "category", "classid", "class_id", "class_name")
_PATHS_LOOKED_AT = 5
# The options of `Reading` that name columns, or say how one is read.
COLUMNS = ("image_column", "text_column", "label_column", "label_separator", "label_columns", "target_column")


@dataclass(frozen=True)
class Reading:
    """Options of reading a data set. Columns are of tables, each "" to take the only one with a usual name.

    Attributes
    ----------
    image_column, label_column : str
        One column.
    text_column : str
        One column, or several separated by commas, which make one text of a line each.
    label_separator : str
        Between the labels of a sample in one text; "" where it has one.
    label_columns, target_column : str
        Columns of 0 and 1, one a label, or of numbers to predict, separated by commas.
    missing_labels : {"unknown", "negative"}
        What an empty cell and -1 say of labels.
    folder_levels : {"auto", "class", "domain/class"}
        What the folders of a split are.
    confined : bool
        Whether image files that a table names must lie in the table's folder.
    """

    image_column: str = ""
    text_column: str = ""
    label_column: str = ""
    label_separator: str = ""
    label_columns: str = ""
    target_column: str = ""
    missing_labels: str = "unknown"
    folder_levels: str = "auto"
    confined: bool = False


def choose_column(wanted: str, columns: Sequence[str], candidates: Collection[str], *, role: str, owner: str) -> str:
    """Return the column that the user names, or, if ``wanted`` is empty, the only candidate, a usual name.

    Raises
    ------
    DatasetError
        If there is no such column, or if none or several have a usual name. It begins with the owner, the data set,
        and says the role: ``image``, ``text`` or ``label``, with which the run-config key begins.
    """
    if wanted:
        if wanted not in columns:
            raise DatasetError(f"{owner}: there is no {role} column {wanted!r}; the columns are {list(columns)}")
        return wanted
    found = _usual(columns, candidates)
    if len(found) != 1:
        several, none = f"several columns may be the {role}: {found}", f"no column has a usual name for the {role}"
        raise DatasetError(f"{owner}: {several if found else none}; name one of {list(columns)} with {role}-column")
    return found[0]


def choose_samples(table: "datasets.Dataset", reading: Reading, *, owner: str) -> tuple[Kind, tuple[str, ...]]:
    """Find out whether a table holds images or texts, and in which columns.

    Where the user names no column, one with a usual name for images comes first, then one with a usual name for paths
    whose values end as image files do, then one with a usual name for texts. Images have one column, texts one or
    several.

    Raises
    ------
    DatasetError
        If the user names both, or for what `choose_column` refuses.
    """
    names, image_column, text_column = table.column_names, reading.image_column, reading.text_column
    if image_column and text_column:
        raise DatasetError(f"{owner}: name image-column or text-column, got {image_column!r} and {text_column!r}")
    if text_column:
        return "text", some_columns(table, text_column, role="text", owner=owner)
    if image_column or _usual(names, IMAGE_COLUMNS):
        return "image", (choose_column(image_column, names, IMAGE_COLUMNS, role="image", owner=owner),)
    if paths := [name for name in _usual(names, PATH_COLUMNS) if _holds_image_paths(table, name)]:
        return "image", (choose_column("", names, paths, role="image", owner=owner),)
    if usual := [name for name in _usual(names, TEXT_COLUMNS) if is_string(table.features[name])]:
        return "text", (choose_column("", names, usual, role="text", owner=owner),)
    raise DatasetError(
        f"{owner}: no column has a usual name for the image, nor one of strings for the text; name one of "
        f"{names} with image-column or text-column"
    )


def some_columns(table: "datasets.Dataset", wanted: str, *, role: str, owner: str) -> tuple[str, ...]:
    """Return the columns that the user names, separated by commas."""
    names = tuple(name.strip() for name in wanted.split(","))
    return tuple(choose_column(name, table.column_names, (), role=role, owner=owner) for name in names)


def _usual(names: Sequence[str], candidates: Collection[str]) -> list[str]:
    wanted = {name.strip().casefold() for name in candidates}
    return [name for name in names if name.strip().casefold() in wanted]


def _holds_image_paths(table: "datasets.Dataset", column: str) -> bool:
    if not is_string(table.features[column]):
        return False
    values = [value for value in table[column][:_PATHS_LOOKED_AT] if value]
    return bool(values) and all(Path(value).suffix.lower() in IMAGE_SUFFIXES for value in values)


def scalar_columns(table: "datasets.Dataset", excluded: Collection[str]) -> LazyColumns:
    """Return the columns with one integer, string or truth value per row; names for numbers if the table has them."""

    def read(name: str) -> NDArray[Any]:
        values: NDArray[Any] = np.asarray(table[name][:])
        class_names = getattr(table.features[name], "names", None)
        if class_names is None or (values.size and (values.dtype.kind not in "iu" or values.min() < 0)):
            return values
        named: NDArray[Any] = np.array(class_names)[values]
        return named

    features = {name: table.features[name] for name in table.column_names if name not in excluded}
    scalar = [
        name
        for name, feature in features.items()
        if is_integer(feature) or is_string(feature) or str(getattr(feature, "dtype", "")) == "bool"
    ]
    return LazyColumns(scalar, read)


def choose_label(table: "datasets.Dataset", reading: Reading, samples: Collection[str], *, owner: str) -> str:
    """Return the label's column, as `choose_column`; where none has a usual name, its error says what the others are.

    Parameters
    ----------
    samples : collection of str
        The columns of the image or the text.
    """
    try:
        return choose_column(reading.label_column, table.column_names, LABEL_COLUMNS, role="label", owner=owner)
    except DatasetError as error:
        if reading.label_column or _usual(table.column_names, LABEL_COLUMNS):
            raise
        others = [name for name in table.column_names if name not in samples]
        marks = [name for name in others if {*map(str, table[name][:])} <= {"0", "1", "True", "False", "0.0", "1.0"}]
        hint = ""
        if len(marks) > 1:
            hint = f"; {', '.join(marks)} hold 0 and 1 only: this {_SEVERAL_LABELS} label-columns"
        elif len(others) == 1 and numbers_in(table[others[0]][:]) is not None:
            hint = f"; {others[0]!r} {_LOOKS_LIKE_A_NUMBER}"
        raise DatasetError(f"{error}{hint}") from None


_LOOKS_LIKE_A_NUMBER = "looks like a number to predict: name it with target-column"
_SEVERAL_LABELS = "looks like several labels a sample: give"
# Rows beyond which numbers of which few occur twice are not classes.
_FEW_ROWS = 20


def read_labels(table: "datasets.Dataset", column: str, *, owner: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return a table's labels as class indices, and the classes.

    The classes are those of the column's metadata; else the values that occur, sorted: numbers, or strings (and truth
    values) without blanks at their ends. Whole numbers may have a decimal point. Labels, (n,), are not checked for
    range, which `Dataset` does.

    Raises
    ------
    DatasetError
        If there are no rows, or labels are missing (null, or an empty string), negative, neither numbers nor strings
        nor truth values, or look like a number to predict, or several labels a sample; the message says what to do.
    """
    raw = [value.strip() if isinstance(value, str) else value for value in table[column][:]]
    missing = sum(value is None or value == "" or value != value for value in raw)
    if missing:
        raise DatasetError(f"{owner}: {missing} of {len(raw)} rows have no {column!r}; leave them out")
    if not raw:
        raise DatasetError(f"{owner}: the table has no rows")
    if (names_in_metadata := getattr(table.features[column], "names", None)) is not None:
        return np.asarray(raw, dtype=np.int64), tuple(names_in_metadata)
    numbers = numbers_in(raw)
    if numbers is not None:
        return _numbered_labels(numbers, column, owner)
    values = np.asarray(raw)
    if values.dtype.kind not in "Ub":
        raise DatasetError(
            f"{owner}: labels must be one integer or string per row, {column!r} holds {table.features[column]}; "
            "name another column with label-column"
        )
    names, labels = np.unique(values, return_inverse=True)
    if (several := _several_labels(names.tolist())) is not None:
        raise DatasetError(f"{owner}: {column!r} has {several!r}: it {_SEVERAL_LABELS} label-separator")
    return labels.astype(np.int64), tuple(str(name) for name in names)


def _numbered_labels(
    numbers: NDArray[np.float64], column: str, owner: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    values, labels = np.unique(numbers, return_inverse=True)
    if (values % 1).any() or (len(numbers) > _FEW_ROWS and 2 * len(values) > len(numbers)):
        raise DatasetError(f"{owner}: {column!r} {_LOOKS_LIKE_A_NUMBER}; or name another column with label-column")
    if values[0] < 0 and values.tolist() != [-1, 1]:
        raise DatasetError(
            f"{owner}: {int((numbers < 0).sum())} of {len(numbers)} labels in {column!r} are below 0; a negative label "
            "usually marks a sample without one: leave such samples out"
        )
    return labels.astype(np.int64), tuple(str(int(value)) for value in values)


def numbers_in(values: Sequence[object]) -> NDArray[np.float64] | None:
    """Return values as numbers, if they are, also in text with a decimal point or comma; "007" is a name."""
    if all(isinstance(value, str) and _FRACTION.fullmatch(value) for value in values):
        return np.array([float(str(value).replace(",", ".")) for value in values])
    plain = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return np.asarray(values, dtype=np.float64) if plain and np.isfinite(np.asarray(values, np.float64)).all() else None


_FRACTION = re.compile(r"-?(0|[1-9]\d*)([.,]\d+)?", re.ASCII)


def _several_labels(names: Sequence[str]) -> str | None:
    """Return a name that is others in one, such as ``edema|mass`` beside ``edema`` and ``mass``."""
    for separator in "|;,":
        parts = {name: [part.strip() for part in name.split(separator)] for name in names if separator in name}
        known = Counter(part for of_name in parts.values() for part in of_name) + Counter(names)
        for name, of_name in parts.items():
            # "Pepper, bell" and "Pepper, red" are two classes.
            enough = all if separator == "," else any
            if enough(known[part] > 1 for part in of_name):
                return name
    return None


def is_integer(feature: Any) -> bool:
    """Return whether a column of this kind holds integers, with names for them in its metadata or without."""
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint"))


def is_string(feature: Any) -> bool:
    """Return whether a column of this kind holds strings."""
    return str(getattr(feature, "dtype", "")) in {"string", "large_string"}
