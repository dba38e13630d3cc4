"""Paths that a user gives in a configuration."""

from pathlib import Path

from fedstats_app.data.dataset import DatasetError


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
