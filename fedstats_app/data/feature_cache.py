"""Features on disk, so that a second run on the same data skips the backbone.

A cache is a folder of parts, ``<root>/features/<key>/<digest>.npy``. A part is one array of records (sample index,
feature vector), named by the digest of its bytes: it is there whole or not at all; any number of processes may write at
once; and a part that was damaged since is found out when it is read.

For each part there is a list, ``<root>/contents/<backbone>/<digest>.npy``, by which features are found from what a
sample holds, whichever data set it was cached for: (4 + n, 16) bytes, those of the cache's key, of the part's digest,
and the digests of what the n samples hold, in the order of the part's rows.
"""

import functools
import hashlib
import io
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstats_app.base.files import write_atomically
from fedstats_app.data.contents import DIGEST_BYTES
from fedstats_app.data.paths import absolute_path

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "FEDSTATS_CACHE"
FEATURES, CONTENTS = "features", "contents"
# Parts that are mapped at a time: each holds a file open, and a process may often have only 1,024.
MOST_OPEN = 64
# A folder of n names is listed again when n / LISTED_FOR more searches have asked for it: else as many clients as there
# are parts would each list all of them.
LISTED_FOR = 100
_KEY = re.compile(r"[0-9a-f]{16,128}")
_PART_NAME = re.compile(r"[0-9a-f]{64}\.npy")
_HEAD_BYTES = 64
_CONTENT = np.dtype(f"S{DIGEST_BYTES}")

# From a file to the part that it tells of and the keys of that part's rows.
_ReadKeys = Callable[[Path], tuple[Path, NDArray[Any]]]


class FeatureCache:
    """Features of single samples, kept on disk under one key.

    Parameters
    ----------
    root : Path
        Folder of all caches, such as `default_cache_root()`; created when something is stored.
    key : str
        64 lower-case hex digits that stand for all that a feature depends on beside the sample's index: the data set's
        fingerprint, the backbone's, the transform. A cache that shares nothing may have 16 to 128.
    backbone : str
        Such digits that stand for the same but the data set: caches with the same ones share features of samples that
        hold the same; "" for a cache that shares nothing.

    Raises
    ------
    ValueError
        If the key has another form.
    """

    def __init__(self, root: Path, key: str, backbone: str = "") -> None:
        for digits in (key, backbone or key):
            if not _KEY.fullmatch(digits):
                raise ValueError(f"a feature cache's key must be 16 to 128 lower-case hex digits, got {digits!r}")
        self._root, self._key = Path(root), key
        self.folder = self._root / FEATURES / key
        self._own = _Rows(self.folder, np.dtype(np.int64), lambda path: (path, read_part(path)["index"].copy()))
        self._contents = self._root / CONTENTS / backbone if backbone else None
        self._shared = _Rows(self._contents, _CONTENT, self._read_list) if self._contents else None

    def lookup(self, indices: NDArray[np.integer]) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Return the features that are known of some samples.

        The disk is searched for parts of other processes only if some are not known yet.

        Parameters
        ----------
        indices : numpy.ndarray
            ``(n,)`` non-negative integers, repeats allowed.

        Returns
        -------
        features : numpy.ndarray or None
            ``(n, d)`` float32; rows of unknown samples are NaN. None if nothing is known of any of them.
        known : numpy.ndarray
            ``(n,)`` bool.
        """
        return self._own.lookup(indices)

    def lookup_contents(self, contents: Sequence[bytes | None]) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Look n digests of samples' contents up in the caches of other data sets, as :meth:`lookup` does.

        Nothing is known of None.
        """
        if self._shared is None:
            return None, np.zeros(len(contents), dtype=bool)
        return self._shared.lookup(np.array([one or b"" for one in contents], dtype=_CONTENT))

    def store(
        self, indices: NDArray[np.integer], features: NDArray[np.float32], contents: Sequence[bytes | None] = ()
    ) -> None:
        """Keep the features of some samples.

        A disk that is full or cannot be written costs time in later runs but not this run: it is logged.

        Parameters
        ----------
        indices : numpy.ndarray
            ``(n,)`` non-negative integers.
        features : numpy.ndarray
            ``(n, d)`` float32; a ValueError says if one is not finite.
        contents : sequence of bytes or None
            n digests of what the samples hold (`sample_digest`), to share them with other data sets; empty for not.
        """
        if not np.isfinite(features).all():
            raise ValueError("features that are not finite are not cached")
        if len(indices) == 0:
            return
        records = np.empty(len(indices), dtype=[("index", "<i8"), ("feature", "<f4", (features.shape[1],))])
        records["index"], records["feature"] = indices, features
        try:
            part = _write(self.folder, records)
            if self._contents is not None and any(contents):
                head = bytes.fromhex(self._key) + bytes.fromhex(part)
                body = head + b"".join(one or bytes(DIGEST_BYTES) for one in contents)
                _write(self._contents, np.frombuffer(body, dtype=np.uint8).reshape(-1, DIGEST_BYTES))
        except OSError as error:
            _warn_once(str(self.folder.parent), error.strerror or str(error))

    def _read_list(self, path: Path) -> tuple[Path, NDArray[Any]]:
        """Read what the samples of a part of another key hold; those of this one are known by their places."""
        body = path.read_bytes()
        _check_digest(path, body)
        values = np.load(io.BytesIO(body), allow_pickle=False).reshape(-1)
        key, part = (values[start : start + 32].tobytes().hex() for start in (0, 32))
        contents = values[_HEAD_BYTES:].view(_CONTENT)
        return self._root / FEATURES / key / f"{part}.npy", contents[:0] if key == self._key else contents


class _Rows:
    """Rows of parts, found by a key: a sample's index, or a digest of what it holds.

    ``read`` reads one of the folder's files, named by their digests, which tell the keys that are in a part.
    """

    def __init__(self, folder: Path, dtype: np.dtype[Any], read: _ReadKeys) -> None:
        self._folder, self._read = folder, read
        # When files changed that were read, or could not be: these are tried again once they were written anew.
        self._seen: dict[str, int] = {}
        self._searches_left = 0
        self._parts: list[Path] = []
        # Sorted: key i is that of row _row[i] of part _part[i].
        self._keys = np.empty(0, dtype=dtype)
        self._part, self._row = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)

    def lookup(self, wanted: NDArray[Any]) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Return the features of keys (n,), NaN if they are unknown, and which are known."""
        place, known = self._find(wanted)
        if not known.all():
            self._scan()
            place, known = self._find(wanted)
        features: NDArray[np.float32] | None = None
        unknown: list[int] = []
        for number in np.unique(self._part[place[known]]).tolist():
            here = np.flatnonzero(known)[self._part[place[known]] == number]
            try:
                found = read_part(self._parts[number])["feature"][self._row[place[here]]]
                if features is None:
                    features = np.full((len(wanted), found.shape[1]), np.nan, dtype=np.float32)
                features[here] = found
            except (OSError, ValueError, IndexError) as error:
                if not isinstance(error, FileNotFoundError):  # else it was cleared by another process
                    self._warn(self._parts[number], error)
                known[here] = False
                unknown.append(number)
        if unknown:
            kept = ~np.isin(self._part, unknown)
            self._keys, self._part, self._row = self._keys[kept], self._part[kept], self._row[kept]
        return features, known

    def _find(self, wanted: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if not len(self._keys):
            return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
        place = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return place, self._keys[place] == wanted

    def _scan(self) -> None:
        """Take in the files that were written since the last time, in the order of their names."""
        if self._searches_left:
            self._searches_left -= 1
            return
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        self._searches_left = len(names) // LISTED_FOR
        found, parts, rows = [self._keys], [self._part], [self._row]
        for name in sorted(filter(_PART_NAME.fullmatch, names)):
            path = self._folder / name
            try:
                changed = path.stat().st_mtime_ns
                if self._seen.get(name) == changed:
                    continue
                part, keys = self._read(path)
            except FileNotFoundError:
                continue  # cleared by another process since it was listed
            except (OSError, ValueError) as error:
                self._warn(path, error)
                keys = self._keys[:0]
            self._seen[name] = changed
            if len(keys):
                found.append(keys)
                parts.append(np.full(len(keys), len(self._parts)))
                rows.append(np.arange(len(keys)))
                self._parts.append(part)
        if len(found) > 1:
            keys = np.concatenate(found)
            order = np.argsort(keys, kind="stable")
            self._keys, self._part = keys[order], np.concatenate(parts)[order]
            self._row = np.concatenate(rows)[order]

    def _warn(self, path: Path, error: Exception) -> None:
        logger.warning("cached features in %s are damaged and will be computed again: %s", path, error)


@functools.cache
def _warn_once(folder: str, reason: str) -> None:
    """Say it for one client of all, and for one block of its features."""
    logger.warning("features could not be cached in %s: %s", folder, reason)


def default_cache_root() -> Path:
    """Return the folder of all feature caches: FEDSTATS_CACHE of the environment, or ~/.cache/fedstats.

    Raises
    ------
    DatasetError
        If the variable holds a relative path.
    """
    return absolute_path(os.environ.get(CACHE_VARIABLE) or "~/.cache/fedstats", owner=CACHE_VARIABLE)


def _write(folder: Path, values: NDArray[Any]) -> str:
    """Write an array, whole or not at all, and return the digest that it is named by."""
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    digest = hashlib.sha256(stream.getbuffer()).hexdigest()
    # Features say nearly as much as the images: other users of the machine cannot read them.
    for place in (folder.parent, folder):
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(folder / f"{digest}.npy", stream.getvalue(), mode=0o600)
    return digest


def read_part(path: Path) -> NDArray[np.void]:
    """Map a part into memory; every byte of it was as it was written when it was read first.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If its bytes are not those that it is named after, or not records of (index, feature).
    """
    changed = path.stat().st_mtime_ns
    _check_part(path, changed)
    return _mapped(path, changed)


@functools.lru_cache(maxsize=100_000)
def _check_part(path: Path, changed: int) -> None:
    _check_digest(path, path.read_bytes())


@functools.lru_cache(maxsize=MOST_OPEN)
def _mapped(path: Path, changed: int) -> NDArray[np.void]:
    records: NDArray[np.void] = np.load(path, mmap_mode="r", allow_pickle=False)
    if records.dtype.names != ("index", "feature") or records.ndim != 1 or len(records) == 0:
        raise ValueError(f"records of (index, feature) are needed, got {records.dtype} of shape {records.shape}")
    return records


def _check_digest(path: Path, body: bytes) -> None:
    digest = hashlib.sha256(body).hexdigest()
    if digest != path.stem:
        raise ValueError(f"its SHA-256 is {digest}")
