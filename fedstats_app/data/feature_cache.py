"""Features on disk, so that a second run on the same data skips the backbone.

There is one SQLite file per backbone, ``<root>/features/<backbone>.sqlite``. It has the features of samples by a digest
of what they hold, whichever data set they were read from, and the digest of each data set's samples by their place.
Any number of processes may read and write at once, and one that is killed leaves the file whole. Each row has a
checksum, so that a row that was damaged since is computed again.
"""

import functools
import logging
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.paths import absolute_path

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "FEDSTATS_CACHE"
FEATURES = "features"
_TABLES = """
pragma page_size = 32768;
create table if not exists feature (content blob unique, vector blob, checksum integer);
create table if not exists sample (data text, place integer, content blob, primary key (data, place)) without rowid;
"""
# Each gives (key, content, vector, checksum) of the keys that are known, up to 32,766 at a time.
_BY_PLACE = (
    "select place, content, vector, feature.checksum from sample join feature using (content) "
    "where data = ? and place in ({})"
)
_BY_CONTENT = "select content, content, vector, checksum from feature where content in ({})"
# Seconds until another process has written; the longest write is one block of features.
_PATIENCE = 60.0


class _Thread(threading.local):
    kept: dict[Path, sqlite3.Connection] | None = None


_thread = _Thread()


@contextmanager
def caches_kept_open() -> Iterator[dict[Path, sqlite3.Connection]]:
    """Keep what this thread opens until the end of the outermost block.

    To open a file takes longer than to read the features of a few samples.
    """
    if _thread.kept is not None:
        yield _thread.kept
        return
    kept: dict[Path, sqlite3.Connection] = {}
    _thread.kept = kept
    try:
        yield kept
    finally:
        _thread.kept = None
        for connection in kept.values():
            connection.close()


class FeatureCache:
    """Features of a data set's samples by one backbone, kept on disk.

    Parameters
    ----------
    root : Path
        Folder of all caches, such as `default_cache_root()`; created when something is stored.
    data : str
        Hex digest of what identifies the data set.
    backbone : str
        Hex digest of all that a feature depends on beside the sample: the backbone and its transform.
    """

    def __init__(self, root: Path, data: str, backbone: str) -> None:
        self.file, self._data = Path(root) / FEATURES / f"{backbone}.sqlite", data

    def lookup(self, places: NDArray[np.integer]) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Return the features that are known of some samples.

        Parameters
        ----------
        places : numpy.ndarray
            ``(n,)`` indices of samples in the data set, repeats allowed.

        Returns
        -------
        features : numpy.ndarray or None
            ``(n, d)`` float32; rows of unknown samples are NaN. None if nothing is known of any of them.
        known : numpy.ndarray
            ``(n,)`` bool.
        """
        return self._rows(_BY_PLACE, places.tolist(), self._data)

    def lookup_contents(self, contents: Sequence[bytes | None]) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Look n digests of what samples hold up, as :meth:`lookup` does; nothing is known of None."""
        return self._rows(_BY_CONTENT, contents)

    def store(
        self, places: NDArray[np.integer], features: NDArray[np.float32], contents: Sequence[bytes | None]
    ) -> None:
        """Keep the features of some samples.

        If the disk is full or cannot be written, this is logged and costs time in later runs only.

        Parameters
        ----------
        places : numpy.ndarray
            ``(n,)`` indices of samples in the data set.
        features : numpy.ndarray
            ``(n, d)`` float32; a ValueError says if one is not finite.
        contents : sequence of bytes or None
            n digests of what the samples hold (`sample_digest`), by which other data sets find them.
        """
        if not np.isfinite(features).all():
            raise ValueError("features that are not finite are not cached")
        kept = [content or f"{self._data} {place}".encode() for content, place in zip(contents, places, strict=True)]
        vectors = [vector.astype("<f4").tobytes() for vector in features]

        def write(connection: sqlite3.Connection) -> None:
            checksums = map(zlib.crc32, vectors, map(zlib.crc32, kept))
            connection.executemany(
                "insert or ignore into feature values (?, ?, ?)", zip(kept, vectors, checksums, strict=True)
            )
            connection.executemany(
                "insert or replace into sample (data, place, content) values (?, ?, ?)",
                zip([self._data] * len(kept), places.tolist(), kept, strict=True),
            )

        self._in_transaction(write, create=True)

    def _rows(
        self, query: str, keys: Sequence[Any], *data: str
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Return the features of n keys, and which are known; rows that are damaged are deleted."""
        found: dict[Any, NDArray[np.float32]] = {}

        def read(connection: sqlite3.Connection) -> None:
            damaged = []
            rows = connection.execute(query.format(",".join("?" * len(keys))), (*data, *keys))
            for key, content, vector, checksum in rows:
                if zlib.crc32(vector, zlib.crc32(content)) == checksum:
                    found[key] = np.frombuffer(vector, "<f4")
                else:
                    damaged.append((content,))
            if damaged:
                logger.warning("%d cached features in %s are damaged and computed again", len(damaged), self.file)
                connection.executemany("delete from feature where content = ?", damaged)

        self._in_transaction(read)
        known = np.array([key in found for key in keys], dtype=bool)
        if not found:
            return None, known
        absent = np.full_like(next(iter(found.values())), np.nan)
        return np.stack([found.get(key, absent) for key in keys]), known

    def _in_transaction(self, work: Callable[[sqlite3.Connection], None], *, create: bool = False) -> None:
        """Do work in one transaction; nothing if there is no file, or if it cannot be used, which is logged."""
        try:
            with caches_kept_open() as kept:
                if not self.file.exists():
                    self._close(kept)
                    if not create:
                        return
                if self.file not in kept:
                    kept[self.file] = self._connection()
                with kept[self.file] as connection:
                    connection.execute("begin")
                    work(connection)
        except (OSError, sqlite3.OperationalError) as error:
            _warn_once(str(self.file), str(error))
        except sqlite3.DatabaseError as error:
            logger.warning("cached features in %s are damaged and computed again: %s", self.file, error)
            self._close(_thread.kept or {})
            for name in (self.file, f"{self.file}-journal"):
                Path(name).unlink(missing_ok=True)

    def _close(self, kept: dict[Path, sqlite3.Connection]) -> None:
        if (connection := kept.pop(self.file, None)) is not None:
            connection.close()

    def _connection(self) -> sqlite3.Connection:
        # Features say nearly as much as the images: other users of the machine cannot read them.
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self.file, os.O_CREAT, 0o600))
        connection = sqlite3.connect(self.file, timeout=_PATIENCE)
        try:
            connection.execute("pragma synchronous = off")  # damage by a crash of the machine is found out
            if not connection.execute("pragma schema_version").fetchone()[0]:
                connection.executescript(_TABLES)
        except sqlite3.Error:
            connection.close()
            raise
        return connection


@functools.cache
def _warn_once(file: str, reason: str) -> None:
    """Log a problem once, although each client and block meets it."""
    logger.warning("features could not be cached in %s: %s", file, reason)


def default_cache_root() -> Path:
    """Return the folder of all feature caches: FEDSTATS_CACHE of the environment, or ~/.cache/fedstats.

    Raises
    ------
    DatasetError
        If the variable holds a relative path.
    """
    return absolute_path(os.environ.get(CACHE_VARIABLE) or "~/.cache/fedstats", owner=CACHE_VARIABLE)
