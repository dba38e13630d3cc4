"""Images or texts in folders, one per class."""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.dataset import Dataset, DatasetError, Kind, Sample
from fedstats_app.data.paths import existing_path

logger = logging.getLogger(__name__)

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
TEXT_SUFFIXES = frozenset({".txt"})
SUFFIXES: Mapping[Kind, frozenset[str]] = {"image": IMAGE_SUFFIXES, "text": TEXT_SUFFIXES}


class FolderSource:
    """The files of a folder, by their paths relative to it."""

    def __init__(self, root: Path, relative_paths: list[str], kind: Kind) -> None:
        self._root, self._kind = root, kind
        self._relative_paths = relative_paths

    def open(self, index: int) -> Sample:
        """Open an image file, whose pixels are read later, or read a text file, which is in UTF-8."""
        path = self._root / self._relative_paths[index]
        return Image.open(path) if self._kind == "image" else path.read_text(encoding="utf-8")

    def name(self, index: int) -> str:
        """Return the path of a sample, relative to the folder and with forward slashes."""
        return self._relative_paths[index]


def load_folder(path: str, split: str) -> Dataset | None:
    """Load a folder that holds one folder of images, or of text files, per class.

    Either ``<path>/train/<class>/...`` with ``<path>/test/<class>/...`` beside it or not, or ``<path>/<class>/...``,
    which has no test split. Classes are the names of the class folders in sorted order (of the training split), empty
    ones included. Files may lie deeper; then the column ``subfolder`` holds the first folder below the class, such as
    a domain or a user. Hidden files and folders are passed over, and so are files without a suffix of `IMAGE_SUFFIXES`;
    where no file has one, the samples are the files with one of `TEXT_SUFFIXES`, each of them one text in UTF-8.

    Parameters
    ----------
    path : str
        Absolute, or starting with ``~``.
    split : {"train", "test"}
        Which part.

    Returns
    -------
    Dataset or None
        None if the test split is asked for and there is none.

    Raises
    ------
    DatasetError
        If the path is relative or missing, if there are no class folders or no samples, or if the test split has
        samples of a class that the training split has no folder for.
    """
    spec = f"folder:{path}"
    root = existing_path(path, owner=spec)
    if not root.is_dir():
        raise DatasetError(f"{spec}: {root} is a file; a folder with one folder of images per class is needed")
    has_train, has_test = (root / "train").is_dir(), (root / "test").is_dir()
    if split == "test":
        if not has_test:
            return None
        test = _load_split(spec, split, root / "test")
        return test.with_class_names(_class_folders(spec, root / "train")) if has_train else test
    if has_test and not has_train:
        raise DatasetError(f"{spec}: {root} has a folder test but no folder train: there is nothing to train on")
    return _load_split(spec, split, root / "train" if has_train else root)


def _class_folders(spec: str, folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DatasetError(f"{spec}: {folder} has no folders in it; one per class is needed, named by the class")
    return names


def _load_split(spec: str, split: str, folder: Path) -> Dataset:
    class_names = _class_folders(spec, folder)
    found = [visible_files(folder / class_name) for class_name in class_names]
    files = [sorted(path.relative_to(folder).as_posix() for path in of_class) for of_class in found]
    kind = _kind_of(files)
    paths: list[str] = []
    labels: list[int] = []
    for label, (class_name, of_class) in enumerate(zip(class_names, files, strict=True)):
        kept = [path for path in of_class if _suffix(path) in SUFFIXES[kind]]
        _tell_passed_over(len(of_class) - len(kept), kind, folder / class_name)
        paths.extend(kept)
        labels.extend([label] * len(kept))
    if not paths:
        raise DatasetError(
            f"{spec}: no image in the folders of {folder}; images end in {sorted(IMAGE_SUFFIXES)}, "
            f"texts in {sorted(TEXT_SUFFIXES)}"
        )
    return Dataset(
        name=f"{spec} ({split})",
        class_names=tuple(class_names),
        labels=np.array(labels, dtype=np.int64),
        fingerprint=_fingerprint(split, folder, paths),
        source=FolderSource(folder, paths, kind),
        columns=_subfolder_column(paths),
        kind=kind,
    )


def _kind_of(files: list[list[str]]) -> Kind:
    """Return "image" if there is any, else "text" if there is any; "image" where there is nothing."""
    suffixes = {_suffix(path) for of_class in files for path in of_class}
    return "text" if suffixes & TEXT_SUFFIXES and not suffixes & IMAGE_SUFFIXES else "image"


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files at all depths of a folder that are neither hidden nor in a hidden folder."""
    for directory, subdirectories, files in os.walk(folder):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        yield from (Path(directory, name) for name in files if not name.startswith("."))


def _tell_passed_over(number: int, kind: Kind, folder: Path) -> None:
    if number:
        logger.warning("%d files in %s do not end as %ss do and were passed over", number, folder, kind)


def _fingerprint(split: str, folder: Path, paths: list[str]) -> str:
    digest = hashlib.sha256(f"folder {split}\n".encode())
    for path in paths:
        status = (folder / path).stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _subfolder_column(paths: list[str]) -> Mapping[str, NDArray[Any]]:
    parts = [path.split("/") for path in paths]
    if all(len(part) == 2 for part in parts):
        return {}
    return {"subfolder": np.array([part[1] if len(part) > 2 else "" for part in parts])}
