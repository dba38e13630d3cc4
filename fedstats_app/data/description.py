"""Description of a data set in words: printed before anything is computed, so that a misread folder is seen at once."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.contents import sample_digest
from fedstats_app.data.dataset import GREY_16_BIT_MODES, MAX_16_BIT, UNREADABLE, Dataset, DatasetError

# Characters of a list of names that is shown whole.
_LIST_LENGTH = 200
_NAME_LENGTH = 40
_FIRST_NAMES = 6
# Those of MNIST, 28 pixels wide, are the smallest that people classify on purpose.
SMALL_PIXELS = 24
_SIZES_READ = 100
_PERSON = re.compile(r"(patient|subject|person|user|speaker)([ _-]?id)?", re.IGNORECASE)
# Of each split.
_FILES_COMPARED = 20_000


def listed(names: Sequence[str]) -> str:
    """Return names in one line: all of them where they are short, else the first ones, the last and their number."""
    shown = ["".join(c if c.isprintable() else "?" for c in name) for name in names]
    shown = [name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 3]}..." for name in shown]
    whole = ", ".join(shown)
    if len(whole) <= _LIST_LENGTH or len(shown) <= _FIRST_NAMES + 2:
        return whole
    return f"{', '.join(shown[:_FIRST_NAMES])}, ... ({len(shown) - _FIRST_NAMES - 1} more), {shown[-1]}"


def description(train: Dataset, test: Dataset | None) -> str:
    """Return how many samples and classes there are, the classes' names and which splits."""
    samples = f"{train.kind}s"
    held_out = f"test split: {len(test):,} {samples}" if test is not None else "no test split"
    count = len(train.class_names)
    classes = "1 class" if count == 1 else f"{count} classes"
    persons = "" if train.persons is None else f" of {len(np.unique(train.persons)):,} persons"
    named = f"({listed(train.class_names)})"
    if train.targets is not None:
        classes = f"{count} {train.targets.kind}"
        unknown = np.isnan(train.targets.values)
        named += f", {int(unknown.sum()):,} of {unknown.size:,} cells unknown" if unknown.any() else ""
    return f"{len(train):,} {samples}{persons} of {classes} {named}; {held_out}"


def doubts(train: Dataset, test: Dataset | None, column: str = "") -> list[str]:
    """List likely mistakes, and what may make results poor, a sentence each.

    Headers of up to 100 images, spread over all, are read, and files that are equally long. The column divides the
    samples among clients.
    """
    counts = train.class_counts
    found = []
    if len(counts) > 1 and (count := int((counts == 0).sum())):
        found.append(f"no {train.kind} of {_classes(train, counts == 0)} ({count} of {len(counts)})")
    if count := int((counts == 1).sum()):
        found.append(f"a single {train.kind} of {_classes(train, counts == 1)} ({count} of {len(counts)})")
    for names in _near_equal(train.class_names):
        found.append(f"the classes {' and '.join(map(repr, names))} differ in letter case, spaces or Unicode form only")
    persons = [name for name in train.columns if _PERSON.fullmatch(name.strip())]
    if persons and train.persons is None and column not in persons:
        found.append(
            f"column {persons[0]!r} seems to say whose each {train.kind} is: person-column = {persons[0]!r} keeps each "
            f"person's {train.kind}s together; without it accuracy on {train.kind}s of known persons is too high"
        )
    if twice := _in_two_classes(train):
        are = f"{len(twice)} {train.kind}s are" if len(twice) > 1 else f"1 {train.kind} is"
        found.append(f"{are} in two classes, byte for byte: {listed(twice)}")
    tested = counts if test is None else test.class_counts
    if untested := len(np.setdiff1d(np.flatnonzero(counts), np.flatnonzero(tested))):
        found.append(f"{untested} of {len(counts)} classes have no {train.kind} in the test split")
    if test is not None and train.persons is not None and test.persons is not None:
        tested_persons = np.unique(test.persons)
        if count := int(np.isin(tested_persons, train.persons).sum()):
            found.append(f"{count} of {len(tested_persons)} persons of the test split are in the training data too")
    if test is not None and (count := _in_both(train, test)):
        found.append(
            f"{count} of {len(test):,} test {train.kind}s {'is' if count == 1 else 'are'} in the training data too, "
            f"byte for byte: accuracy is too high by what was learnt from {'it' if count == 1 else 'them'}"
        )
    if train.kind == "image":
        found += _doubts_of_images(train)
    return found


def clients_in_words(parts: Sequence[NDArray[np.int64]], dataset: Dataset, *, by_size: bool) -> str:
    """Return how many samples clients have, and whether their number is that of the samples, or persons."""
    kind, unit = dataset.kind, dataset.kind if dataset.persons is None else "person"
    usual = f" (one for every 50 {unit}s, 2 to 100; num-clients says otherwise)" if by_size else ""
    sizes = np.array([len(part) for part in parts])
    rest = f", {int((sizes == 0).sum())} of them without any{usual}" if (sizes == 0).any() else usual
    if sizes.min() == sizes.max():
        return f"{len(sizes)} sites of {sizes.max():,} {kind}s each{usual}"
    return f"{len(sizes)} sites of {sizes.min():,} to {sizes.max():,} {kind}s (median {np.median(sizes):,.0f}){rest}"


def check_classes(train: Dataset) -> None:
    """Refuse data with one class: there is nothing to tell apart.

    Raises
    ------
    DatasetError
        If so; it names what may be the classes instead.
    """
    present = np.unique(train.labels)
    if len(present) > 1 or train.targets is not None:
        return
    below = sorted({str(value) for value in train.columns.get("subfolder", ())} - {""})
    name = train.class_names[present[0]]
    hint = f". If the folders in {name} ({listed(below)}) are the classes, name {name} as the folder" if below else ""
    raise DatasetError(
        f"{train.name}: all {len(train):,} {train.kind}s are of one class, {name!r}; a classifier needs two{hint}"
    )


def _classes(dataset: Dataset, which: NDArray[np.bool_]) -> str:
    names = [repr(dataset.class_names[index]) for index in np.flatnonzero(which)]
    return f"class{'es' if len(names) > 1 else ''} {listed(names)}"


def _in_both(train: Dataset, test: Dataset) -> int:
    """Count the test samples whose files are byte for byte files of the training data."""
    if train.sizes is None or test.sizes is None:
        return 0
    in_train, in_test = np.isin(train.sizes, test.sizes), np.isin(test.sizes, train.sizes)
    known = {sample_digest(train, int(index)) for index in np.flatnonzero(in_train)[:_FILES_COMPARED]} - {None}
    return sum(sample_digest(test, int(index)) in known for index in np.flatnonzero(in_test)[:_FILES_COMPARED])


def _near_equal(names: Sequence[str]) -> list[list[str]]:
    """Group names that a person would take for the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _in_two_classes(train: Dataset) -> list[str]:
    """Name the samples whose file is that of an earlier sample of another class."""
    if train.sizes is None:
        return []
    _, place, number = np.unique(train.sizes, return_inverse=True, return_counts=True)
    labels: dict[bytes, int] = {}
    found = []
    for index in np.flatnonzero((number[place] > 1) & (train.sizes > 0))[:_FILES_COMPARED].tolist():
        digest = sample_digest(train, index)
        if digest is not None and labels.setdefault(digest, int(train.labels[index])) != train.labels[index]:
            found.append(train.sample_name(index))
    return found


def _doubts_of_images(dataset: Dataset) -> list[str]:
    sides, brightest = [], []
    for index in np.unique(np.linspace(0, len(dataset) - 1, min(_SIZES_READ, len(dataset))).astype(int)):
        try:
            opened = dataset.source.open(int(index))
            if isinstance(opened, Image.Image):
                with opened:
                    sides.append(min(opened.size))
                    if opened.mode in GREY_16_BIT_MODES:
                        brightest.append(int(opened.getextrema()[1]))  # type: ignore[arg-type]  # one band
        except UNREADABLE:
            continue
    found = []
    if sides and min(sides) < SMALL_PIXELS:
        found.append(f"images of only {min(sides)} pixels on a side, in which networks see little")
    if brightest and (most := max(brightest)) < MAX_16_BIT // 4:
        found.append(
            f"16-bit grey images go up to {most:,} only, and the range up to {MAX_16_BIT:,} is read: {most // 257 + 1} "
            "of 256 shades are left; write them with their whole range (12 bits: times 16)"
        )
    return found
