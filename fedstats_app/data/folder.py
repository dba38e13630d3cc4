"""Images or texts in folders, one per class."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstats_app.base.listing import first_few
from fedstats_app.data.dataset import UNREADABLE, Dataset, DatasetError, Kind, Sample, SampleSource
from fedstats_app.data.images import CONVERTERS, open_image, regular_file
from fedstats_app.data.layout import (
    IMAGE_SUFFIXES,
    SUFFIXES,
    TEXT_SUFFIXES,
    FolderLayout,
    Levels,
    find_layout,
    masks_among,
    visible_files,
    visible_folders,
)
from fedstats_app.data.paths import existing_path


def read_text(path: Path) -> str:
    """Read a text in UTF-8; a DatasetError, which does not name the file, says if it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(f"a text must be in UTF-8 (byte {error.start} cannot be read)") from error


def file_source(root: Path, paths: list[str], kind: Kind) -> SampleSource:
    """Return files, by their paths relative to a folder and with forward slashes, as samples that go by these names."""

    def opened(index: int) -> Sample:
        path = regular_file(root / paths[index])
        return open_image(path) if kind == "image" else read_text(path)

    return SampleSource(opened, lambda index: paths[index])


def load_folder(path: str, split: str, levels: str = "auto") -> Dataset | None:
    """Load a folder that holds one folder of images, or of text files, per class.

    Either ``<path>/train/<class>/...`` with ``<path>/test/<class>/...`` beside it or not, in the usual spellings
    (`find_layout`), or ``<path>/<class>/...``, which has no test split. Classes are the names of the class folders in
    sorted order (of the training split), empty ones included. Files may lie deeper; then the column ``subfolder`` holds
    the first folder below the class, such as a person. With levels "domain/class" the class folders lie in domain
    folders, whose names are the column ``domain``. Hidden files and folders are passed over, and so are files without a
    suffix of `IMAGE_SUFFIXES`; where no file has one, the samples are the files with one of `TEXT_SUFFIXES`, each of
    them one text in UTF-8.

    The path is absolute or starts with ``~``. None is returned if there is no test split.

    Raises
    ------
    DatasetError
        If the path is relative or missing, if there are no class folders or no samples, if the test split has samples
        of a class that the training split has no folder for, or for what `find_layout` refuses.
    """
    spec = f"folder:{path}"
    layout = layout_at(path, levels)
    if split == "test":
        if layout.test is None:
            return None
        test = _load_split(spec, split, layout.test, layout.levels, layout.notes)
        return test.with_class_names([*_class_folders(spec, layout.train, layout.levels)]) if layout.train else test
    if layout.train is None:
        root = existing_path(path, owner=spec)
        raise DatasetError(f"{spec}: {root} has a folder test but no folder train: there is nothing to train on")
    return _load_split(spec, split, layout.train, layout.levels, layout.notes)


def layout_at(path: str, levels: str = "auto") -> FolderLayout:
    """Find out what the folders at a path are, without a look at every file.

    Raises
    ------
    DatasetError
        If the path is relative, missing or a file, or for what `find_layout` refuses.
    """
    spec = f"folder:{path}"
    root = existing_path(path, owner=spec)
    if not root.is_dir():
        raise DatasetError(f"{spec}: {root} is a file; a folder with one folder of images per class is needed")
    return find_layout(root, levels=levels, spec=spec)


def _class_folders(spec: str, folder: Path, levels: Levels) -> dict[str, list[Path]]:
    """Return each class's folders, one or, in domains, several; classes in sorted order."""
    upper = visible_folders(folder)
    if levels == "class":
        found = {name: [folder / name] for name in upper}
    else:
        pairs = [(name, folder / domain / name) for domain in upper for name in visible_folders(folder / domain)]
        found = {name: [] for name in sorted({name for name, _ in pairs})}
        for name, path in pairs:
            found[name].append(path)
    if undecoded := [name for name in (*upper, *found) if name.encode(errors="ignore").decode() != name]:
        raise DatasetError(f"{spec}: names of folders must be in UTF-8, got {undecoded[0]!a}")
    if not found:
        raise DatasetError(
            f"{spec}: {folder} has no folders in it; one per class is needed, named by the class (or, within domain "
            "folders, folder-levels = 'domain/class'). Paths and labels in a table are csv:/PATH or parquet:/PATH"
        )
    return found


def _load_split(spec: str, split: str, folder: Path, levels: Levels, notes: tuple[str, ...]) -> Dataset:
    folders = _class_folders(spec, folder, levels)
    found = [[path for inside in of_class for path in visible_files(inside)] for of_class in folders.values()]
    files = [sorted(path.relative_to(folder).as_posix() for path in of_class) for of_class in found]
    suffixes = {_suffix(path) for of_class in files for path in of_class}
    kind: Kind = "text" if suffixes & TEXT_SUFFIXES and not suffixes & IMAGE_SUFFIXES else "image"
    kept = [[path for path in of_class if _suffix(path) in SUFFIXES[kind]] for of_class in files]
    if not any(kept):  # images may do without a suffix
        kept = [[path for path in of_class if not _suffix(path) and _is_image(folder / path)] for of_class in files]
    if masked := masks_among([*folders]):
        raise DatasetError(
            f"{spec}: {first_few(folders)} look like images and their masks ({first_few(masked)}), not like classes; "
            "one folder per class is needed, with its images"
        )
    passed_over = _notes_of_files([*folders], files, kept, kind)
    whole, kept = kept, [_without_masks(of_class) for of_class in kept]
    if masks := sum(map(len, whole)) - sum(map(len, kept)):
        passed_over.append(f"{masks} masks of images: left out")
    paths = [path for of_class in kept for path in of_class]
    if not paths:
        raise DatasetError(
            f"{spec}: no image in the folders of {folder}; images end in {sorted(IMAGE_SUFFIXES)}, "
            f"texts in {sorted(TEXT_SUFFIXES)}{to_convert(path for of_class in files for path in of_class)}"
        )
    fingerprint, sizes = _fingerprint(split, folder, paths)
    return Dataset(
        name=f"{spec} ({split})",
        class_names=tuple(folders),
        labels=np.repeat(np.arange(len(kept), dtype=np.int64), [len(of_class) for of_class in kept]),
        fingerprint=fingerprint,
        source=file_source(folder, paths, kind),
        columns=_columns(paths, levels),
        kind=kind,
        notes=(*notes, *passed_over),
        sizes=sizes,
    )


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def _is_image(path: Path) -> bool:
    try:
        open_image(regular_file(path)).close()
    except UNREADABLE:
        return False
    return True


_MASK_ENDING = re.compile(r"[_-]mask([_-]?\d+)?$", re.IGNORECASE)


def _without_masks(paths: list[str]) -> list[str]:
    """Leave out masks in a folder beside that of their images, or named as their image with ``_mask`` behind it."""
    masks = masks_among(sorted({path.split("/")[-2] for path in paths}))
    stems = {os.path.splitext(path)[0] for path in paths}
    own = {stem for stem in stems if (image := _MASK_ENDING.sub("", stem)) != stem and image in stems}
    return [path for path in paths if path.split("/")[-2] not in masks and os.path.splitext(path)[0] not in own]


def _notes_of_files(names: list[str], files: list[list[str]], kept: list[list[str]], kind: Kind) -> list[str]:
    """Return which files are no samples."""
    passed_over = {name: len(all_) - len(own) for name, all_, own in zip(names, files, kept, strict=True)}
    some = [f"{name} ({number})" for name, number in passed_over.items() if number]
    number = sum(passed_over.values())
    hint = to_convert(path for of_class in files for path in of_class) if kind == "image" else ""
    end = "file does" if number == 1 else "files do"
    return [f"{number} {end} not end as {kind}s do: left out, in {first_few(some)}{hint}"] if some else []


def to_convert(files: Iterable[str]) -> str:
    """Say how files become images, "" if no file is of a format that is known here."""
    suffixes = {_suffix(path.removesuffix(".gz")) for path in files}
    found = [text for suffix, text in CONVERTERS.items() if suffix in suffixes]
    return f" ({'; '.join(found)})" if found else ""


def _fingerprint(split: str, folder: Path, paths: list[str]) -> tuple[str, NDArray[np.int64]]:
    """Return the fingerprint of files, from their names, sizes and times, and their sizes."""
    digest, sizes = hashlib.sha256(f"folder {split}\n".encode()), np.zeros(len(paths), dtype=np.int64)
    for place, path in enumerate(paths):
        try:
            status = (folder / path).stat()
            sizes[place], line = status.st_size, f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n"
        except OSError:  # a link that leads nowhere: a sample that cannot be read
            line = f"{path}\0absent\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest(), sizes


def _columns(paths: list[str], levels: Levels) -> Mapping[str, NDArray[Any]]:
    parts = [path.split("/") for path in paths]
    above = 1 if levels == "class" else 2
    domain = {} if above == 1 else {"domain": np.array([part[0] for part in parts])}
    if all(len(part) == above + 1 for part in parts):
        return domain
    return {**domain, "subfolder": np.array([part[above] if len(part) > above + 1 else "" for part in parts])}
