"""Paths that a user gives in a configuration."""

import re
from pathlib import Path, PurePath, PureWindowsPath

from fedstats_app.data.dataset import DatasetError

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


def existing_path(text: str, *, owner: str) -> Path:
    """Return a user's path as `absolute_path` does; a DatasetError says if nothing is there."""
    path = absolute_path(text, owner=owner)
    if not path.exists():
        raise DatasetError(f"{owner}: nothing is at {path}")
    return path
