"""Which names are splits, and which folders are splits, domains and classes, from their names and places alone."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from fedstats_app.base.listing import first_few
from fedstats_app.data.dataset import DatasetError, Kind
from fedstats_app.data.images import DICOM

Split = Literal["train", "validation", "test"]

_SPLIT_WORDS: Mapping[str, Split] = {
    **dict.fromkeys(("train", "training", "trn"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "validate", "eval", "evaluation"), "validation"),
    **dict.fromkeys(("dev", "development"), "validation"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
}
# Words that say nothing beside one of those: training_data, test-set, TrainImages; or behind it: trainset.
_FILLERS = frozenset({"set", "sets", "data", "dataset", "split", "samples", "files", "images", "image", "imgs", "img"})
_SPLITS = {f"{word}{filler}": split for word, split in _SPLIT_WORDS.items() for filler in ("", *_FILLERS)}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_LEFT_OUT = "is left out: nothing here is chosen on a validation split"
_AS_TEST = "is used as the test split: there is no other"

# Of what Pillow reads, the formats of single images.
IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
IMAGE_SUFFIXES |= {".jfif", ".jpe", ".jp2", ".j2k", ".jpx", ".tga", ".dib", ".pbm", ".pnm", ".avif"}
IMAGE_SUFFIXES |= {DICOM} if find_spec("pydicom") else set()
TEXT_SUFFIXES = frozenset({".txt"})
SUFFIXES: Mapping[Kind, frozenset[str]] = {"image": IMAGE_SUFFIXES, "text": TEXT_SUFFIXES}

Levels = Literal["class", "domain/class"]
FOLDER_LEVELS = ("auto", *get_args(Levels))

# What operating systems and unpackers leave behind; names that begin with a dot are passed over too.
_SYSTEM = frozenset(
    {"__macosx", "thumbs.db", "desktop.ini", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
) | {"__pycache__"}
_WRAPPERS_OPENED = 4


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
        words = [word.casefold() for word in _WORD.findall(spelling)]
        splits = [word for word in words if word in _SPLITS]
        if len(splits) == 1:
            rest = (word for word in words if word not in _FILLERS and word not in splits)
            return _SPLITS[splits[0]], " ".join(rest)
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
        return ChosenSplits(train, validation, (f"{validation} {_AS_TEST}",))
    return ChosenSplits(train, test, (f"{validation} {_LEFT_OUT}",))


@dataclass(frozen=True)
class FolderLayout:
    """The folders that hold the class folders (or the domain folders), and how they were understood, in words."""

    train: Path | None
    test: Path | None
    levels: Levels
    notes: tuple[str, ...] = ()


def is_passed_over(name: str) -> bool:
    """Return whether a file or folder is hidden, or left behind by an operating system."""
    return name.startswith(".") or name.casefold() in _SYSTEM


def visible_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder that are not passed over, sorted."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not is_passed_over(entry.name)]
    # A link in a circle is an error to `is_dir`; a call of the system for every file would take long.
    return sorted(entry.name for entry in shown if (os.path.isdir(entry) if entry.is_symlink() else entry.is_dir()))


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files at all depths of a folder that are neither passed over nor in a folder that is."""
    for directory, subdirectories, files in os.walk(folder):
        subdirectories[:] = [name for name in subdirectories if not is_passed_over(name)]
        yield from (Path(directory, name) for name in files if not is_passed_over(name))


def find_layout(root: Path, *, levels: str, spec: str) -> FolderLayout:
    """Find out where the splits of a folder are, and what the folders in them are.

    Folders are splits if their names say so (`split_of`), in any case and spelling, and if they hold folders and no
    samples themselves: ``train`` beside ``bus``, with images in it, is a class. Words beside the split's must be the
    same in another split's name: ``seg_train`` and ``seg_test``. A folder that holds nothing but one folder is opened
    where that is the way to splits. A validation folder serves as the test split where there is no other.

    Parameters
    ----------
    root : Path
        An existing folder.
    levels : {"auto", "class", "domain/class"}
        What the user says; "auto" takes folders for classes, but where their own folders could be that as well.
    spec : str
        The data set, to begin errors with.

    Raises
    ------
    DatasetError
        If there are several training or test folders, if splits lie below classes, or if either of two levels of
        folders may be the classes; the message says what to do.
    """
    notes: list[str] = []
    root = _open_wrappers(root, notes)
    names = visible_folders(root)
    found = _splits(root, names)
    if not found:
        return FolderLayout(root, None, _levels_of(root, levels, spec), tuple(notes))
    for split in ("train", "test"):
        if len(several := [name for name, kind in found.items() if kind == split]) > 1:
            raise DatasetError(
                f"{spec}: {first_few(several)} may all be the {split} split of {root}; keep one of them there, or name "
                f"the folders one by one: dataset = 'folder:{root}/...' and test-dataset = 'folder:{root}/...'"
            )
    rest = [name for name in names if name not in found]
    if "train" not in found.values() and rest:
        raise DatasetError(
            f"{spec}: {first_few(found)} looks like a split beside {first_few(rest)}, but there is no training folder; "
            f"put the class folders into {root / 'train'}, or give {first_few(found)} another name if it is a class"
        )
    folders = {split: [root / name for name in names if found.get(name) == split] for split in get_args(Split)}
    train = _open_own_name(folders["train"][0]) if folders["train"] else None
    test = _labelled(folders["test"], notes)
    validation = folders["validation"]
    if test is None and len(validation) == 1 and (test := _labelled(validation, notes)) is not None:
        notes.append(f"{first_few(folder.name for folder in validation)} {_AS_TEST}")
    elif validation and train is not None:
        notes.append(f"{first_few(folder.name for folder in validation)} {_LEFT_OUT}")
    if rest:
        notes.append(f"{first_few(rest)} beside the splits: left out")
    where = train if train is not None else test
    if where is None:
        raise DatasetError(f"{spec}: {root} has neither a training nor a test folder, only {first_few(found)}")
    return FolderLayout(train, test, _levels_of(where, levels, spec), tuple(notes))


def _open_wrappers(root: Path, notes: list[str]) -> Path:
    """Follow single folders in folders as long as they lead to splits."""
    folder = root
    for _ in range(_WRAPPERS_OPENED):
        names = visible_folders(folder)
        if _splits(folder, names):
            if folder != root:
                notes.append(f"the splits are those of {folder.relative_to(root)}")
            return folder
        if len(names) != 1 or _has_samples(folder):
            break
        folder = folder / names[0]
    return root


def _splits(folder: Path, names: Sequence[str]) -> dict[str, Split]:
    """Return which folders are splits, by name; none where those of such names are classes."""
    spoken = {name: split_of(name) for name in names}
    partners = Counter(rest for split, rest in {value for value in spoken.values() if value[0]})
    candidates = {
        name: split
        for name, (split, rest) in spoken.items()
        if split is not None and (not rest or partners[rest] > 1) and not _is_empty(folder / name)
    }
    if any(visible_folders(folder / name) and not _has_samples(folder / name) for name in candidates):
        return candidates
    # Samples and no folders: classes that are called so, unless nothing else is there.
    return candidates if len(candidates) == len(names) else {}


def _labelled(folders: Sequence[Path], notes: list[str]) -> Path | None:
    """Return the folder of a split, opened; None where it holds no folders, and so no labels."""
    if not folders:
        return None
    opened = _open_own_name(folders[0])
    if visible_folders(opened):
        return opened
    notes.append(f"{folders[0].name} has no class folders in it: left out")
    return None


def _open_own_name(folder: Path) -> Path:
    """Open a folder within a folder where both speak of one split, as in ``seg_train/seg_train``."""
    while (names := visible_folders(folder)) and len(names) == 1:
        same = split_of(names[0])[0] is not None and split_of(names[0]) == split_of(folder.name)
        if not same or not visible_folders(folder / names[0]):
            break
        folder = folder / names[0]
    return folder


def _levels_of(folder: Path, levels: str, spec: str) -> Levels:
    if levels == "domain/class":
        return "domain/class"
    upper = visible_folders(folder)
    lower = {name: visible_folders(folder / name) for name in upper if not _has_samples(folder / name)}
    names = Counter(name for inside in lower.values() for name in inside)
    if len(lower) < len(upper) or len(upper) < 2 or not names or masks_among([*names]):
        return "class"
    if all(split is not None and not rest for split, rest in map(split_of, names)):
        raise DatasetError(
            f"{spec}: the folders {first_few(upper)} of {folder} are divided into splits ({first_few(names)}); the "
            f"split must come first: {folder}/{next(iter(names))}/{upper[0]}"
        )
    shared = sorted(name for name, count in names.items() if count > 1)
    if levels == "auto" and len(shared) > 1:
        above, below = first_few(upper), first_few(shared)
        raise DatasetError(
            f"{spec}: the folders {above} of {folder} hold folders of the same names ({below}). Which are the classes? "
            f"Set folder-levels = 'domain/class' if they are {below} (partitioner = 'domain' with partition-column = "
            f"'domain' then makes clients of {above}), or folder-levels = 'class' if they are {above} (person-column = "
            f"'subfolder' if {below} are persons)"
        )
    return "class"


_MASKS = frozenset({"mask", "masks", "segmentation", "segmentations", "annotations", "ground truth", "groundtruth"})
_IMAGES = frozenset({"image", "images", "img", "imgs", "original", "originals"})


def masks_among(names: Sequence[str]) -> list[str]:
    """Return which names of folders beside each other say masks, if another says images."""
    words = {name: name.casefold().replace("_", " ").replace("-", " ") for name in names}
    return [name for name in names if words[name] in _MASKS] if _IMAGES & set(words.values()) else []


def _has_samples(folder: Path) -> bool:
    """Return whether files of a folder itself end as images or texts do."""
    with os.scandir(folder) as entries:
        return any(
            not is_passed_over(entry.name)
            and os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES | TEXT_SUFFIXES
            and os.path.isfile(entry)
            for entry in entries
        )


def _is_empty(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return all(is_passed_over(entry.name) for entry in entries)
