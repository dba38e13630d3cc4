"""Features found by what a sample holds, whichever data set it was cached for.

For each part of a feature cache there is a list, ``<root>/contents/<backbone>/<digest>.npy``: (4 + n, 16) bytes, those
of the cache's key, of the part's digest, and the digests of what the n samples hold, in the order of the part's rows.
It is named by the digest of its bytes, so one that was damaged is found out, and the part is checked as always. Lists
are small, and are read only when a sample is not known by its place in the data set.
"""

import hashlib
import io
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.contents import DIGEST_BYTES
from fedstats_app.data.feature_cache_files import CONTENTS, FOLDER, NewNames, OpenParts, is_part, read_part, write_whole

logger = logging.getLogger(__name__)

_HEAD_BYTES = 64


class SharedFeatures:
    """What other data sets' caches know of samples, by what those hold.

    Parameters
    ----------
    root : Path
        Folder of all caches.
    backbone : str
        Hex digits that stand for all that a feature depends on beside the sample.
    key : str
        64 hex digits, of the cache that asks: its own parts are known by their places.
    """

    def __init__(self, root: Path, backbone: str, key: str) -> None:
        self._root, self._key = root, key
        self._folder = root / CONTENTS / backbone
        self._lists = NewNames(self._folder)
        self._parts: list[Path] = []
        # Sorted by content; row _row[i] of part _part[i] is of content _content[i].
        self._content = np.empty(0, dtype=f"S{DIGEST_BYTES}")
        self._part, self._row = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._open = OpenParts(read_part)

    def note(self, part: str, contents: Sequence[bytes | None]) -> None:
        """Write down what the samples of a part hold, in the order of its rows.

        A disk that cannot be written costs time in later runs but not this one: it is logged.
        """
        if not any(contents):
            return
        head = bytes.fromhex(self._key) + bytes.fromhex(part)
        values = np.frombuffer(head + b"".join(one or bytes(DIGEST_BYTES) for one in contents), dtype=np.uint8)
        stream = io.BytesIO()
        np.save(stream, values.reshape(-1, DIGEST_BYTES), allow_pickle=False)
        body = stream.getvalue()
        try:
            write_whole(self._folder / f"{hashlib.sha256(body).hexdigest()}.npy", body)
        except OSError as error:
            logger.warning("what cached samples hold could not be written in %s: %s", self._folder, error)

    def lookup(self, contents: Sequence[bytes | None]) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Return the features that other data sets' caches have of samples.

        Parameters
        ----------
        contents : sequence of bytes or None
            n digests; nothing is known of None.

        Returns
        -------
        features : numpy.ndarray or None
            ``(n, d)`` float32, zeros where nothing is known; None if nothing is known of any.
        known : numpy.ndarray
            ``(n,)`` bool.
        """
        known = np.zeros(len(contents), dtype=bool)
        self._scan()
        if not len(self._content):
            return None, known
        wanted = np.array([one or b"" for one in contents], dtype=self._content.dtype)
        place = np.minimum(np.searchsorted(self._content, wanted), len(self._content) - 1)
        features: NDArray[np.float32] | None = None
        # A content of zeros stands for none, in lists and here.
        for i in np.flatnonzero((self._content[place] == wanted) & (wanted != b"")).tolist():
            records = self._open.records(self._parts[int(self._part[place[i]])])
            row = int(self._row[place[i]])
            if records is None or row >= len(records):
                continue
            feature = records["feature"][row]
            if features is None:
                features = np.zeros((len(contents), len(feature)), dtype=np.float32)
            if len(feature) == features.shape[1]:
                features[i], known[i] = feature, True
        return features, known

    def _scan(self) -> None:
        """Take in the lists that were written since the last time, but for those of the cache's own parts."""
        found, parts, rows = [self._content], [self._part], [self._row]
        for name in self._lists.listed():
            if not is_part(Path(name)):
                continue
            self._lists.seen.add(name)
            try:
                body = (self._folder / name).read_bytes()
            except OSError:
                continue  # cleared by another process since it was listed
            if f"{hashlib.sha256(body).hexdigest()}.npy" != name:
                logger.warning("a list of what cached samples hold is damaged and not used: %s", name)
                continue
            values = np.load(io.BytesIO(body), allow_pickle=False).reshape(-1)
            key, part = (values[start : start + 32].tobytes().hex() for start in (0, 32))
            if key == self._key:
                continue
            contents = values[_HEAD_BYTES:].view(self._content.dtype)
            found.append(contents)
            parts.append(np.full(len(contents), len(self._parts)))
            rows.append(np.arange(len(contents)))
            self._parts.append(self._root / FOLDER / key / f"{part}.npy")
        if len(found) > 1:
            content = np.concatenate(found)
            order = np.argsort(content, kind="stable")
            self._content, self._part = content[order], np.concatenate(parts)[order]
            self._row = np.concatenate(rows)[order]
