"""Paths that a user gives in a configuration."""

import re
import stat
from pathlib import Path, PurePath, PureWindowsPath

from PIL import Image

from fedstats_app.data.dataset import DatasetError

DICOM = ".dcm"

_PATH = re.compile(r"[/~]|\\\\|[A-Za-z]:[/\\]")  # how paths begin that a configuration can have, on any system


def absolute_path(text: str, *, owner: str) -> Path:
    """Return a user's path, with ``~`` expanded.

    The app's working directory is that of whatever shell first started Flower's background process, so a relative path
    would mean something else than the user thinks.

    Parameters
    ----------
    text : str
        An absolute path, or one that starts with ``~``.
    owner : str
        What the path is for, to begin the error with.

    Raises
    ------
    DatasetError
        If the path is relative or empty.
    """
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise DatasetError(
            f"{owner}: the path must be absolute or start with ~, got {text!r}; "
            "the app does not run in the directory that you started it from"
        )
    return path


def without_folders(spec: str) -> str:
    """Return what may be shown of a data set's or network's name: of a path only its last part.

    Paths are private: ``folder:/home/ann/flowers`` becomes ``folder:flowers``.

    Parameters
    ----------
    spec : str
        Such as ``hub:NAME``, ``folder:/PATH``, ``/PATH``, or any other text, which comes back unchanged.
    """
    # One prefix or several (``timm:local-dir:/PATH``); a drive's letter is none.
    rest = re.sub(r"^(?:[A-Za-z][\w-]+:)+", "", spec)
    if not _PATH.match(rest):
        return spec
    name = (PurePath if rest[0] in "/~" else PureWindowsPath)(rest).name
    return f"{spec.removesuffix(rest)}{name or rest}"


def regular_file(path: Path) -> Path:
    """Return the path of a sample's file, unless it is a pipe, socket or device, which may keep its reader for good.

    Raises
    ------
    OSError
        If it is one, or nothing is there.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is no regular file")
    return path


def open_image(path: Path) -> Image.Image:
    """Open the image of a file, of DICOM by its name."""
    if path.suffix.lower() != DICOM:
        return Image.open(path)
    from fedstats_app.data.dicom import read_dicom  # hardly any data set has such files

    return read_dicom(path)


def existing_path(text: str, *, owner: str) -> Path:
    """Return a user's path as `absolute_path` does, if something is there.

    Raises
    ------
    DatasetError
        If the path is relative or empty, or if nothing is there.
    """
    path = absolute_path(text, owner=owner)
    if not path.exists():
        raise DatasetError(f"{owner}: nothing is at {path}")
    return path
