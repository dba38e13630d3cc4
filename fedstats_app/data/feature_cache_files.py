"""The files of feature caches: where they are, how a part is written and read, how much they hold."""

import contextlib
import functools
import hashlib
import io
import os
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.paths import absolute_path

CACHE_VARIABLE = "FEDSTATS_CACHE"
FOLDER = "features"
# Beside it: what the samples of cached parts hold.
CONTENTS = "contents"
KEY = re.compile(r"[0-9a-f]{16,128}")
_PART_NAME = re.compile(r"[0-9a-f]{64}\.npy")
# Parts that are mapped at a time: each holds a file open, and a process may often have only 1,024.
MOST_OPEN = 64
# Parts of fewer bytes are read: mapping one takes longer than copying it.
MOST_READ = 2**18
_NPY_START = b"\x93NUMPY\x01\x00"
# A folder of n names is listed again when n / LISTED_FOR more searches have asked for it: else as many clients as there
# are parts would each list all of them.
LISTED_FOR = 100


def default_cache_root() -> Path:
    """Return the folder of all feature caches: FEDSTATS_CACHE of the environment, or ~/.cache/fedstats.

    Raises
    ------
    DatasetError
        If the variable holds a relative path.
    """
    return absolute_path(os.environ.get(CACHE_VARIABLE) or "~/.cache/fedstats", owner=CACHE_VARIABLE)


def cache_size(root: Path) -> int:
    """Return the bytes of all cached features under a root, unfinished files of crashed processes included."""
    return sum(path.stat().st_size for path in _own_files(root))


def clear_cache(root: Path) -> int:
    """Delete all cached features under a root, and nothing else, and return the bytes freed.

    Processes that read the cache meanwhile compute again what is gone (on Windows open files cannot be deleted).
    """
    freed = 0
    for path in list(_own_files(root)):
        freed += path.stat().st_size
        path.unlink()
    for folder in _key_folders(root):
        if not any(folder.iterdir()):
            folder.rmdir()
    return freed


def is_part(path: Path) -> bool:
    """Return whether a path is named as a finished part is."""
    return _PART_NAME.fullmatch(path.name) is not None


def write_part(folder: Path, records: NDArray[np.void]) -> str:
    """Write one part, whole or not at all, create the folder if need be, and return the digest that it is named by.

    Parameters
    ----------
    folder : Path
        The folder of the cache's key.
    records : numpy.ndarray
        ``(n,)`` of fields ``index`` (int64) and ``feature`` (d float32).

    Raises
    ------
    OSError
        If it cannot be written; nothing is left behind then.
    """
    with _temporary(folder) as temporary:
        with temporary.open("w+b") as stream:
            np.save(stream, records, allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        os.replace(temporary, folder / f"{digest}.npy")
    return digest


def write_whole(path: Path, body: bytes) -> None:
    """Write a small file, whole or not at all, and create its folder if need be.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left behind then.
    """
    with _temporary(path.parent) as temporary:
        temporary.write_bytes(body)
        os.replace(temporary, path)


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """Give the name of a new file in a folder, and delete it if it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        yield temporary
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_part(path: Path) -> NDArray[np.void]:
    """Map a part into memory after checking that every byte is as it was written.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If its bytes are not those that it is named after, or not records of (index, feature).
    """
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != path.stem:
        raise ValueError(f"its SHA-256 is {digest}")
    return map_part(path)


def map_part(path: Path) -> NDArray[np.void]:
    """Map a part whose bytes were checked before, or read it if it is small.

    Raises
    ------
    OSError, ValueError
        As :func:`read_part`, but for its digest.
    """
    with path.open("rb", buffering=0) as stream:
        data = stream.read(MOST_READ)
    records: NDArray[np.void]
    if len(data) < MOST_READ and data.startswith(_NPY_START):
        end = len(_NPY_START) + 2 + int.from_bytes(data[len(_NPY_START) : len(_NPY_START) + 2], "little")
        dtype, shape = _described(data[:end])
        records = np.frombuffer(data, dtype, offset=end).reshape(shape)
    else:
        records = np.load(path, mmap_mode="r", allow_pickle=False)
    if records.dtype.names != ("index", "feature") or records.ndim != 1 or len(records) == 0:
        raise ValueError(f"records of (index, feature) are needed, got {records.dtype} of shape {records.shape}")
    return records


@functools.lru_cache(maxsize=256)
def _described(header: bytes) -> tuple[np.dtype, tuple[int, ...]]:
    """Return dtype and shape of what follows the header of an .npy file, version 1.0."""
    stream = io.BytesIO(header)
    np.lib.format.read_magic(stream)
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    return dtype, shape


class OpenParts:
    """Parts that are mapped into memory: the ones used last.

    Parameters
    ----------
    read : callable
        :func:`read_part`, or :func:`map_part` where they were checked before.
    """

    def __init__(self, read: Callable[[Path], NDArray[np.void]]) -> None:
        self._read = read
        self._open: OrderedDict[Path, NDArray[np.void] | None] = OrderedDict()

    def records(self, path: Path) -> NDArray[np.void] | None:
        """Return a part's records, None where it is gone or damaged."""
        if path not in self._open:
            try:
                self._open[path] = self._read(path)
            except (OSError, ValueError):
                self._open[path] = None
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return self._open[path]


class NewNames:
    """What was written into a folder since it was listed before.

    Attributes
    ----------
    seen : set of str
        Names that are new no more; whoever uses them adds them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._left = folder, 0
        self.seen: set[str] = set()

    def listed(self) -> list[str]:
        """Return new names, sorted; none where the folder is not there, or was listed a moment ago."""
        if self._left:
            self._left -= 1
            return []
        if not self._folder.is_dir():
            return []
        names = os.listdir(self._folder)
        self._left = len(names) // LISTED_FOR
        return sorted(set(names) - self.seen)


def _key_folders(root: Path) -> list[Path]:
    tops = [top for top in (Path(root) / FOLDER, Path(root) / CONTENTS) if top.is_dir()]
    return [path for top in tops for path in top.iterdir() if path.is_dir() and KEY.fullmatch(path.name)]


def _own_files(root: Path) -> Iterator[Path]:
    for folder in _key_folders(root):
        for path in folder.iterdir():
            if is_part(path) or (path.name.startswith(".") and path.suffix == ".tmp"):
                yield path
