"""Which column of a table is the image or the text, which the label, and what the classes are called."""

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


@dataclass(frozen=True)
class Reading:
    """Options of reading a data set. Columns are of tables, each "" to take the only one with a usual name.

    Attributes
    ----------
    image_column, label_column : str
        One column.
    text_column : str
        One column, or several separated by commas, which make one text of a line each.
    folder_levels : {"auto", "class", "domain/class"}
        What the folders of a split are.
    confined : bool
        Whether image files that a table names must lie in the table's folder.
    """

    image_column: str = ""
    text_column: str = ""
    label_column: str = ""
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
        wanted = tuple(name.strip() for name in text_column.split(","))
        return "text", tuple(choose_column(name, names, (), role="text", owner=owner) for name in wanted)
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
    return LazyColumns([name for name, feature in features.items() if _is_scalar(feature)], read)


# More classes than this, and more than rows, are no class ids but some other number.
_MOST_CLASSES = 100_000


def read_labels(table: "datasets.Dataset", column: str, *, owner: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return a table's labels as class indices, and the classes.

    The classes are those of the column's metadata; else the distinct strings (or truth values), sorted; else, for
    integers, the numbers from 0 to the greatest one. Labels, (n,), are not checked for range, which `Dataset` does.

    Raises
    ------
    DatasetError
        If labels are missing (null), or neither integers nor strings nor truth values, or if there are no rows.
    """
    raw = table[column][:]
    missing = sum(value is None for value in raw)
    if missing:
        raise DatasetError(f"{owner}: {missing} of {len(raw)} rows have no {column!r}; leave them out")
    if not raw:
        raise DatasetError(f"{owner}: the table has no rows")
    values = np.asarray(raw)
    if values.ndim != 1 or values.dtype.kind not in "iuUb":
        raise DatasetError(
            f"{owner}: labels must be one integer or string per row, {column!r} holds {table.features[column]}; "
            "name another column with label-column"
        )
    if values.dtype.kind in "Ub":
        names, labels = np.unique(values, return_inverse=True)
        return labels.astype(np.int64), tuple(str(name) for name in names)
    names_in_metadata = getattr(table.features[column], "names", None)
    if names_in_metadata is not None:
        return values.astype(np.int64), tuple(names_in_metadata)
    num_classes = max(int(values.max()) + 1, 1)
    if num_classes > max(_MOST_CLASSES, len(raw)):
        raise DatasetError(
            f"{owner}: integer labels count classes from 0, so the greatest says how many there are; {column!r} goes "
            f"up to {num_classes - 1} in {len(raw)} rows. Make it a column of strings if these are names"
        )
    return values.astype(np.int64), tuple(str(number) for number in range(num_classes))


def is_integer(feature: Any) -> bool:
    """Return whether a column of this kind holds integers, with names for them in its metadata or without."""
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint"))


def is_string(feature: Any) -> bool:
    """Return whether a column of this kind holds strings."""
    return str(getattr(feature, "dtype", "")) in {"string", "large_string"}


def _is_scalar(feature: Any) -> bool:
    return is_integer(feature) or is_string(feature) or str(getattr(feature, "dtype", "")) == "bool"
