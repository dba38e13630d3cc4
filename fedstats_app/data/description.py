"""Description of a data set in words: printed before anything is computed, so that a misread folder is seen at once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.contents import sample_digest
from fedstats_app.data.dataset import GREY_16_BIT_MODES, MAX_16_BIT, UNREADABLE, Dataset, DatasetError

# Lists of names up to so many characters are shown whole.
_LIST_LENGTH = 200
_NAME_LENGTH = 40
_FIRST_NAMES = 6
# Those of MNIST, 28 pixels wide, are the smallest that people classify on purpose.
SMALL_PIXELS = 24
_SIZES_READ = 100
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
    return f"{len(train):,} {samples} of {classes} ({listed(train.class_names)}); {held_out}"


def doubts(train: Dataset, test: Dataset | None) -> list[str]:
    """List likely mistakes, and what may make results poor, a sentence each.

    Headers of up to 100 images, spread over all, are read, and files of the two splits that are equally long.
    """
    counts = np.bincount(train.labels, minlength=len(train.class_names))
    found = []
    if len(counts) > 1 and (count := int((counts == 0).sum())):
        found.append(f"{_classes(train, counts == 0)} without any {train.kind} ({count} of {len(counts)})")
    if count := int((counts == 1).sum()):
        found.append(f"{_classes(train, counts == 1)} with a single {train.kind} ({count} of {len(counts)})")
    if test is not None:
        tested = np.bincount(test.labels, minlength=len(counts)) > 0
        if untested := int(((counts > 0) & ~tested[: len(counts)]).sum()):
            found.append(f"{untested} of {len(counts)} classes have no {train.kind} in the test split")
    if test is not None and (count := _in_both(train, test)):
        found.append(
            f"{count} of {len(test):,} test {train.kind}s {'is' if count == 1 else 'are'} in the training data too, "
            f"byte for byte: accuracy is too high by what was learnt from {'it' if count == 1 else 'them'}"
        )
    if train.kind == "image":
        found += _doubts_of_images(train)
    return found


def clients_in_words(parts: Sequence[NDArray[np.int64]], kind: str) -> str:
    """Return how many samples clients have."""
    sizes = np.array([len(part) for part in parts])
    empty = f", {int((sizes == 0).sum())} of them without any" if (sizes == 0).any() else ""
    if sizes.min() == sizes.max():
        return f"{len(sizes)} sites of {sizes.max():,} {kind}s each"
    return f"{len(sizes)} sites of {sizes.min():,} to {sizes.max():,} {kind}s (median {np.median(sizes):,.0f}){empty}"


def check_classes(train: Dataset) -> None:
    """Refuse data with one class: there is nothing to tell apart.

    Raises
    ------
    DatasetError
        If so; it names what may be the classes instead.
    """
    present = np.unique(train.labels)
    if len(present) > 1:
        return
    below = sorted({str(value) for value in train.columns.get("subfolder", ())} - {""})
    name = train.class_names[present[0]]
    hint = f". If the folders in {name} ({listed(below)}) are the classes, name {name} as the folder" if below else ""
    raise DatasetError(
        f"{train.name}: all {len(train):,} {train.kind}s are of one class, {name!r}; a classifier needs two{hint}"
    )


def _classes(dataset: Dataset, which: NDArray[np.bool_]) -> str:
    names = [dataset.class_names[index] for index in np.flatnonzero(which)]
    return f"class{'es' if len(names) > 1 else ''} {listed(names)}"


def _in_both(train: Dataset, test: Dataset) -> int:
    """Count the test samples whose files are byte for byte files of the training data."""
    if train.sizes is None or test.sizes is None:
        return 0
    in_train, in_test = np.isin(train.sizes, test.sizes), np.isin(test.sizes, train.sizes)
    known = {sample_digest(train, int(index)) for index in np.flatnonzero(in_train)[:_FILES_COMPARED]} - {None}
    return sum(sample_digest(test, int(index)) in known for index in np.flatnonzero(in_test)[:_FILES_COMPARED])


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
