"""Which of several names is the training split and which the test split: of folders, files and saved data alike."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validation", "test"]

_SPLIT_WORDS: Mapping[str, Split] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "validate", "eval", "evaluation"), "validation"),
    **dict.fromkeys(("dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
}
# Words that say nothing beside one of those: training_data, test-set, TrainImages.
_FILLERS = frozenset({"set", "sets", "data", "dataset", "split", "samples", "files", "images", "image", "imgs", "img"})
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

LEFT_OUT = "is left out: nothing here is chosen on a validation split"
AS_TEST = "is used as the test split: there is no other"


@dataclass(frozen=True)
class ChosenSplits:
    """Which names are the splits that a run uses, each None where there is none."""

    train: str | None
    test: str | None
    notes: tuple[str, ...] = ()


def split_of(name: str) -> tuple[Split | None, str]:
    """Return which split a name speaks of, and what else it says.

    ``Training`` and ``train_set`` are ``("train", "")``, ``seg_train`` is ``("train", "seg")``; a name with no word for
    a split, or with two, is of none.
    """
    for spelling in (name, name.casefold()):  # trainSet, and TRAINset
        words = [part for word in _WORD.findall(spelling) for part in _without_filler(word.casefold())]
        splits = [word for word in words if word in _SPLIT_WORDS]
        if len(splits) == 1:
            rest = (word for word in words if word not in _FILLERS and word not in splits)
            return _SPLIT_WORDS[splits[0]], " ".join(rest)
    return None, name


def choose_splits(names: Iterable[str]) -> ChosenSplits:
    """Return which of the names are the training and the test split.

    A validation split serves as the test split where there is no other. A name that says ``train`` or ``test`` itself
    comes before another spelling of it; of several others of one split none is taken but the first.
    """
    found: dict[Split, str] = {}
    for name in sorted(names, key=lambda name: (name not in _SPLIT_WORDS, name)):
        split, rest = split_of(name)
        if split is not None and not rest:
            found.setdefault(split, name)
    train, test, validation = found.get("train"), found.get("test"), found.get("validation")
    if validation is None:
        return ChosenSplits(train, test)
    if test is None:
        return ChosenSplits(train, validation, (f"{validation} {AS_TEST}",))
    return ChosenSplits(train, test, (f"{validation} {LEFT_OUT}",))


def _without_filler(word: str) -> tuple[str, ...]:
    """Split ``trainset`` into its two words."""
    for filler in _FILLERS:
        if word.endswith(filler) and word.removesuffix(filler) in _SPLIT_WORDS:
            return word.removesuffix(filler), filler
    return (word,)
