"""Reading one text from a file."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from fedstats_app.data.dataset import DatasetError


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8.

    Raises
    ------
    DatasetError
        If it is an image, or no UTF-8; the message does not name the file.
    OSError
        If it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        kind = _image_format(path)
        what = f"it is an image ({kind})" if kind else f"it is not in UTF-8 (byte {error.start} cannot be read)"
        raise DatasetError(f"a text is wanted here, and {what}") from error


def _image_format(path: Path) -> str:
    """Return the name of an image's format, "" of what is no image."""
    try:
        with Image.open(path) as image:
            return image.format or ""
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""
