"""Tables of images or texts as data sets: their rows as samples, their columns as labels and groups."""

import codecs
import csv as _csv
import hashlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.columns import (
    Reading,
    choose_column,
    choose_label,
    choose_samples,
    is_integer,
    is_string,
    read_labels,
    scalar_columns,
)
from fedstats_app.data.dataset import Dataset, DatasetError, Kind, SampleSource
from fedstats_app.data.images import open_image, regular_file
from fedstats_app.data.target_columns import read_targets

if TYPE_CHECKING:
    import datasets
    import pyarrow

Suffix = Literal["parquet", "csv", "json"]
_PATHS_TRIED = 50
# Encodings of a parquet file in which every value stands in full, or once in a dictionary.
_IN_FULL = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})
_DICTIONARY = _IN_FULL | {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
# Of a file; a class name of 50 MB, once in a compressed dictionary, is in memory once for every row.
MOST_ROWS, MOST_COLUMNS = 10_000_000, 10_000
# Bytes to which any parquet file may unpack, and to which it may for each of its own.
UNPACKED, UNPACKED_EACH = 256_000_000, 20


def read_files(suffix: Suffix, files: list[Path], spec: str) -> "datasets.Dataset":
    """Read files of one kind as one table; `DatasetError` names those that cannot be read."""
    import datasets
    from datasets.exceptions import DatasetsError

    try:
        if suffix == "csv":
            return datasets.Dataset(read_csv(files))
        if suffix == "parquet":
            for file in files:
                check_parquet(file)
        datasets.disable_progress_bars()  # many worker processes write into one log
        return datasets.load_dataset(suffix, data_files=[str(file) for file in files], split="train")
    except (OSError, ValueError, DatasetsError) as error:
        cause = error.__cause__ or error
        names = [file.name for file in files]
        raise DatasetError(f"{spec}: {names} cannot be read ({type(cause).__name__}: {cause})") from error


def check_parquet(file: Path) -> None:
    """Refuse a file with too many rows or columns, or that would unpack to far more than it has.

    Values that a dictionary holds once count as often as rows have them; the others as the file says.

    Raises
    ------
    ValueError
        If it does.
    """
    from pyarrow import parquet

    most = max(UNPACKED, UNPACKED_EACH * file.stat().st_size)
    with parquet.ParquetFile(file) as opened:
        about = opened.metadata
        _check_shape(about.num_rows, about.num_columns)
        places = [(group, column) for group in range(about.num_row_groups) for column in range(about.num_columns)]
        chunks = [about.row_group(group).column(column) for group, column in places]
    unpacked = sum(max(chunk.total_uncompressed_size, 8 * chunk.num_values) for chunk in chunks)
    for (group, _), chunk in zip(places, chunks, strict=True):
        bound = chunk.num_values * chunk.total_uncompressed_size
        if unpacked > most:
            break
        if chunk.physical_type == "BYTE_ARRAY" and bound > most and not _IN_FULL.issuperset(chunk.encodings):
            with parquet.ParquetFile(file, read_dictionary=[chunk.path_in_schema]) as opened:
                once = _DICTIONARY.issuperset(chunk.encodings)
                unpacked += _unpacked(opened.read_row_group(group, [chunk.path_in_schema])) if once else bound
    if unpacked > most:
        raise ValueError(f"it must unpack to at most {most:,} bytes")


def _unpacked(table: "pyarrow.Table") -> int:
    """Add the lengths of the values of a table with one column, perhaps nested, whose values are in a dictionary."""
    import pyarrow as pa
    from pyarrow import compute

    total = 0
    for array in table.column(0).chunks:
        while not pa.types.is_dictionary(array.type):
            array = array.field(0) if pa.types.is_struct(array.type) else array.flatten()
        total += compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0
    return total


def _check_shape(rows: int, columns: int) -> None:
    if rows > MOST_ROWS or columns > MOST_COLUMNS:
        raise ValueError(
            f"it must have at most {MOST_ROWS:,} rows and {MOST_COLUMNS:,} columns, has {rows:,} and {columns:,}"
        )


def read_csv(files: list[Path]) -> "pyarrow.Table":
    """Read CSV files as spreadsheets write them: commas, semicolons or tabs, UTF-8, UTF-16 or Windows-1252.

    Only an empty cell is missing. A column is of integers if all its cells are, as they are written: 007 is a name.
    """
    import pyarrow as pa
    from pyarrow import compute, csv

    parts = []
    for file in files:
        raw = file.read_bytes()
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            text = raw.decode("utf-16")
        else:
            try:
                text = raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                text = raw.decode("cp1252")
        first, _, rest = text.partition("\n")
        if first.casefold().startswith("sep="):  # for Excel alone
            first, text = rest.partition("\n")[0], rest
        delimiter = max(",;\t", key=first.count)
        _check_shape(text.count("\n"), first.count(delimiter) + 1)
        names = next(_csv.reader([first], delimiter=delimiter), [])
        if len(set(names)) < len(names):
            raise ValueError(f"{file.name}: columns must have different names, has {names}")
        parts.append(
            csv.read_csv(
                io.BytesIO(text.encode()),
                parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    null_values=[""], strings_can_be_null=True, column_types=dict.fromkeys(names, pa.string())
                ),
            )
        )
    whole = pa.concat_tables(parts)
    for place, name in enumerate(whole.column_names):
        numbers = compute.match_substring_regex(whole[place], r"^(0|-?[1-9]\d{0,17})$")
        if compute.all(numbers).as_py():
            whole = whole.set_column(place, name, whole[place].cast(pa.int64()))
    return whole


def table_dataset(
    spec: str,
    split: str,
    tables: dict[str, "datasets.Dataset"],
    reading: Reading,
    fingerprint: str,
    *,
    notes: tuple[str, ...] = (),
    folder: Path | None = None,
) -> Dataset:
    """Return one split of a data set that is given as tables, the training split's in any case.

    Parameters
    ----------
    spec : str
        The data set, to begin errors with.
    split : {"train", "test"}
        Which part.
    tables : dict
        By split.
    reading : Reading
        The user's columns.
    fingerprint : str
        Of the tables' content.
    notes : tuple of str
        Of the data set.
    folder : Path, optional
        Where the table lies, for image files that it names by relative paths.

    Raises
    ------
    DatasetError
        For what `choose_column`, `read_labels` and `rows_of` refuse.
    """
    train, table = tables["train"], tables[split]
    owner = f"{spec} ({split})"
    kind, held_in = choose_samples(train, reading, owner=spec)
    several = read_targets(train, reading, held_in, owner=spec)
    labelled = (choose_label(train, reading, held_in, owner=spec),) if several is None else several[2]
    for column, role in (*((column, kind) for column in held_in), *((column, "label") for column in labelled)):
        choose_column(column, table.column_names, (), role=role, owner=owner)
    targets = None
    if several is not None and (own := read_targets(table, reading, held_in, owner=owner)) is not None:
        class_names, targets, _ = own
        labels = np.zeros(len(table), dtype=np.int64)
    else:
        labels, class_names = read_labels(table, labelled[0], owner=owner)
    source, stamp, sizes = rows_of(table, kind, held_in, split, folder=folder, confined=reading.confined, owner=owner)
    dataset = Dataset(
        name=owner,
        class_names=class_names,
        labels=labels,
        fingerprint=hashlib.sha256(f"{fingerprint} {stamp}".encode()).hexdigest() if stamp else fingerprint,
        source=source,
        columns=scalar_columns(table, excluded={*held_in, *labelled}),
        numbered=several is None and is_integer(table.features[labelled[0]]),
        kind=kind,
        notes=notes,
        sizes=sizes,
        targets=targets,
    )
    if split == "train":
        return dataset
    names = several[0] if several is not None else read_labels(train, labelled[0], owner=f"{spec} (train)")[1]
    return dataset.with_class_names(names)


def rows_of(
    table: "datasets.Dataset",
    kind: Kind,
    columns: tuple[str, ...],
    label: str,
    *,
    folder: Path | None,
    confined: bool,
    owner: str,
) -> tuple[SampleSource, str, NDArray[np.int64] | None]:
    """Return the rows of a table as samples.

    Parameters
    ----------
    table, kind, columns
        The samples, as `choose_samples` found them.
    label : str
        To name samples by, with the number of the row.
    folder : Path or None
        That of the table, from which image files that it names are found; None if it lies in none.
    confined : bool
        Whether absolute paths of image files must lie in it, too; relative ones do not lead out of it in any case.
    owner : str
        The data set, to begin errors with.

    Returns
    -------
    source : SampleSource
        Opens a text: the strings of its columns, a line each. Or an image: from bytes, or from a file.
    stamp : str
        All that the content of the samples depends on beside the table's; "" for nothing.
    sizes : numpy.ndarray or None
        ``(n,)`` bytes of the files, where samples are files.

    Raises
    ------
    DatasetError
        If none of the paths of some spread over all rows leads to an image file.
    """
    if kind == "text":
        # The columns decide what a sample is: features of others must not be taken for theirs.
        return _texts(table, columns, label), str(columns), None
    if is_string(table.features[columns[0]]):
        return _files(table, columns[0], label, folder, confined=confined, owner=owner)
    return _images(table, columns[0], label), "", None


def _texts(table: "datasets.Dataset", columns: tuple[str, ...], label: str) -> SampleSource:
    rows = table.select_columns(list(columns))

    def opened(index: int) -> str:
        texts = [rows[index][column] for column in columns]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"the row holds no text in {', '.join(map(repr, columns))}")
        return "\n".join(texts)

    return SampleSource(opened, lambda index: f"{label}[{index}]")


def _images(table: "datasets.Dataset", column: str, label: str) -> SampleSource:
    """Return rows with the bytes of an image's file, or its absolute path."""
    import datasets

    rows = table.select_columns(column)
    if isinstance(table.features[column], datasets.Image):
        # The one rule of `to_rgb` decides about orientation, not the library.
        rows = rows.cast_column(column, datasets.Image(decode=False))

    def opened(index: int) -> Image.Image:
        value = rows[index][column]
        content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if isinstance(content, bytes):
            return Image.open(io.BytesIO(content))
        if not isinstance(path, str):
            raise ValueError(f"the row holds no image in {column!r}")
        return open_image(regular_file(_placed(path, None, confined=False)))

    return SampleSource(opened, lambda index: f"{label}[{index}]")


def _files(
    table: "datasets.Dataset", column: str, label: str, folder: Path | None, *, confined: bool, owner: str
) -> tuple[SampleSource, str, NDArray[np.int64]]:
    """Return rows with the path of an image file as samples, with a digest of all paths, and the files' sizes.

    The digest has the files' sizes and times of change, of which the table does not tell.
    """
    texts = table[column][:]

    def path_of(index: int) -> Path:
        if not texts[index]:
            raise ValueError(f"the row holds no path in {column!r}")
        return _placed(texts[index], folder, confined=confined)

    reasons = []
    for index in np.unique(np.linspace(0, len(texts) - 1, _PATHS_TRIED).astype(int)).tolist():
        try:
            if path_of(index).is_file():
                break
            reasons.append(f"nothing is at {path_of(index)}")
        except ValueError as error:
            reasons.append(str(error))
    else:
        raise DatasetError(
            f"{owner}: no path in {column!r} leads to an image: {reasons[0]}; paths are absolute, or relative to "
            "the folder of the table"
        )
    digest, sizes = hashlib.sha256(), np.zeros(len(texts), dtype=np.int64)
    for index, text in enumerate(texts):
        try:
            status = path_of(index).stat()
            sizes[index], line = status.st_size, f"{text}\0{status.st_size}\0{status.st_mtime_ns}\n"
        except (OSError, ValueError):
            line = f"{text}\0absent\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    source = SampleSource(
        lambda index: open_image(regular_file(path_of(index))), lambda index: texts[index] or f"{label}[{index}]"
    )
    return source, f"{(column,)} {digest.hexdigest()}", sizes


def _placed(text: str, folder: Path | None, *, confined: bool) -> Path:
    """Return the path of an image file that a table names; a ValueError refuses one that leads out of its folder."""
    if folder is None:
        if not os.path.isabs(text):
            raise ValueError(f"the row holds a relative path ({text}) and no bytes")
        return Path(text)
    root = Path(os.path.normpath(folder))
    path = Path(os.path.normpath(root / text))
    if (confined or not os.path.isabs(text)) and not path.is_relative_to(root):
        raise ValueError(f"the path {text} leads out of the folder of the table")
    return path
