"""Images in folders, one per class."""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.paths import existing_path

logger = logging.getLogger(__name__)

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


class FolderSource:
    """The image files of a folder, by their paths relative to it."""

    def __init__(self, root: Path, relative_paths: list[str]) -> None:
        self._root = root
        self._relative_paths = relative_paths

    def open(self, index: int) -> Image.Image:
        """Open the file of a sample; its pixels are read later."""
        return Image.open(self._root / self._relative_paths[index])

    def name(self, index: int) -> str:
        """Return the path of a sample, relative to the folder and with forward slashes."""
        return self._relative_paths[index]


def load_folder(path: str, split: str) -> Dataset | None:
    """Load a folder that holds one folder of images per class.

    Either ``<path>/train/<class>/...`` with ``<path>/test/<class>/...`` beside it or not, or ``<path>/<class>/...``,
    which has no test split. Classes are the names of the class folders in sorted order (of the training split), empty
    ones included. Images may lie deeper; then the column ``subfolder`` holds the first folder below the class, such as
    a domain or a user. Hidden files and folders are passed over, and so are files without a suffix of `IMAGE_SUFFIXES`.

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
        If the path is relative or missing, if there are no class folders or no images, or if the test split has images
        of a class that the training split has no folder for.
    """
    spec = f"folder:{path}"
    root = existing_path(path, owner=spec)
    if not root.is_dir():
        raise DatasetError(f"{spec}: {root} is a file; a folder with one folder of images per class is needed")
    has_train, has_test = (root / "train").is_dir(), (root / "test").is_dir()
    if has_test and not has_train:
        raise DatasetError(f"{spec}: {root} has a folder test but no folder train; both are needed, or train alone")
    if split == "train":
        return _load_split(spec, split, root / "train" if has_train else root)
    if not has_test:
        return None
    return _load_split(spec, split, root / "test").with_class_names(_class_folders(spec, root / "train"))


def _class_folders(spec: str, folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DatasetError(f"{spec}: {folder} has no folders in it; one per class is needed, named by the class")
    return names


def _load_split(spec: str, split: str, folder: Path) -> Dataset:
    class_names = _class_folders(spec, folder)
    paths: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        of_class = sorted(_image_paths(folder, class_name))
        paths.extend(of_class)
        labels.extend([label] * len(of_class))
    if not paths:
        raise DatasetError(f"{spec}: no image in the folders of {folder}; images end in {sorted(IMAGE_SUFFIXES)}")
    return Dataset(
        name=f"{spec} ({split})",
        class_names=tuple(class_names),
        labels=np.array(labels, dtype=np.int64),
        fingerprint=_fingerprint(split, folder, paths),
        source=FolderSource(folder, paths),
        columns=_subfolder_column(paths),
    )


def _image_paths(folder: Path, class_name: str) -> Iterator[str]:
    passed_over = 0
    for directory, subdirectories, files in os.walk(folder / class_name):
        subdirectories[:] = [name for name in subdirectories if not name.startswith(".")]
        for name in files:
            if name.startswith("."):
                continue
            path = Path(directory, name)
            if path.suffix.lower() in IMAGE_SUFFIXES:
                yield path.relative_to(folder).as_posix()
            else:
                passed_over += 1
    if passed_over:
        logger.warning("%d files in %s do not end as images do and were passed over", passed_over, folder / class_name)


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
