"""Paths that a user gives in a configuration."""

import re
import stat
from pathlib import Path, PurePath, PureWindowsPath

from PIL import Image, UnidentifiedImageError

from fedstats_app.data.dataset import DatasetError

DICOM = ".dcm"

_PATH = re.compile(r"[/~]|\\\\|[A-Za-z]:[/\\]")  # how paths begin that a configuration can have, on any system
# One or several (``timm:local-dir:/PATH``); a drive's letter is none.
_PREFIXES = r"(?:[A-Za-z][\w-]+:)*"


def absolute_path(text: str, *, owner: str) -> Path:
    """Return a user's path, with ``~`` expanded.

    The app's working directory is that of whatever shell first started Flower's background process, so a relative path
    would mean something else than the user thinks: it is a DatasetError, which begins with the owner of the path.
    """
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise DatasetError(
            f"{owner}: the path must be absolute or start with ~, got {text!r}; "
            "the app does not run in the directory that you started it from"
        )
    return path


def without_folders(spec: str) -> str:
    """Shorten a path, such as ``/PATH`` or ``folder:/PATH``, to its last part; other texts come back unchanged.

    Paths are private: ``folder:/home/ann/flowers`` becomes ``folder:flowers``. Of names joined by ``+`` each is
    shortened.
    """
    if len(joined := re.split(rf"\+(?={_PREFIXES}(?:{_PATH.pattern}))", spec)) > 1:
        return "+".join(map(without_folders, joined))
    rest = re.sub(rf"^{_PREFIXES}", "", spec)
    if not _PATH.match(rest):
        return spec
    name = (PurePath if rest[0] in "/~" else PureWindowsPath)(rest).name
    return f"{spec.removesuffix(rest)}{name or rest}"


def regular_file(path: Path) -> Path:
    """Return the path of a sample's file; an OSError refuses a pipe, socket or device, which may block its reader."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is no regular file")
    return path


# Formats of images that Pillow does not read, and what does.
CONVERTERS = {
    ".dcm": "DICOM: `pip install 'fedstats-app[dicom]'` reads it, or write PNG files with `dcmj2pnm +on2` of DCMTK",
    ".heic": "HEIC: write JPEG files with `heif-convert`",
    ".nii": "NIfTI: write a PNG file per slice",
}


def open_image(path: Path) -> Image.Image:
    """Open the image of a file, of DICOM by its name."""
    suffix = path.suffix.lower()
    if suffix != DICOM:
        try:
            return Image.open(path)
        except UnidentifiedImageError as error:
            if suffix in CONVERTERS:
                raise ValueError(CONVERTERS[suffix]) from error
            raise
    from fedstats_app.data.dicom import read_dicom  # hardly any data set has such files

    return read_dicom(path)


def existing_path(text: str, *, owner: str) -> Path:
    """Return a user's path as `absolute_path` does; a DatasetError says if nothing is there."""
    path = absolute_path(text, owner=owner)
    if not path.exists():
        raise DatasetError(f"{owner}: nothing is at {path}")
    return path
