"""Features on disk, so that a second run on the same data skips the backbone.

A cache is a folder of part files, ``<root>/features/<key>/<digest>.npy``. A part is one array of records (sample index,
feature vector), named by the digest of its bytes: it is written under another name and renamed, so that it is there
whole or not at all; any number of processes may write at once; and a part that was damaged since is found out when it
is read.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.feature_cache_files import (
    FOLDER,
    KEY,
    NewNames,
    OpenParts,
    is_part,
    map_part,
    read_part,
    write_part,
)
from fedstats_app.data.shared_features import SharedFeatures

logger = logging.getLogger(__name__)

_ABSENT = -1


class FeatureCache:
    """Features of single samples, kept on disk under one key.

    Parameters
    ----------
    root : Path
        Folder of all caches, such as `default_cache_root()`; created when something is stored.
    key : str
        16 to 128 lower-case hex digits that stand for all that a feature depends on beside the sample's index: the data
        set's fingerprint, the backbone's, the transform.
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
            if not KEY.fullmatch(digits):
                raise ValueError(f"a feature cache's key must be 16 to 128 lower-case hex digits, got {digits!r}")
        self._shared = SharedFeatures(Path(root), backbone, key) if backbone else None
        self.folder = Path(root) / FOLDER / key
        self._names = NewNames(self.folder)
        # A damaged part is tried again once it was written anew, which its time of change tells.
        self._damaged: dict[str, int] = {}
        self._parts: list[Path] = []
        self._feature_dim = 0
        self._open = OpenParts(map_part)
        # Where the feature of sample i is: row _row[i] of part _part[i].
        self._part = np.empty(0, dtype=np.int64)
        self._row = np.empty(0, dtype=np.int64)

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
            ``(n, d)`` float32, in the order of the indices; rows of unknown samples are NaN. None if nothing is known
            of any sample of this key, since then d is not either.
        known : numpy.ndarray
            ``(n,)`` bool.

        Raises
        ------
        ValueError
            If the indices are not such an array.
        """
        wanted = _checked_indices(indices)
        part = self._find(wanted)
        if (part == _ABSENT).any():
            self._scan()
            part = self._find(wanted)
        known = part != _ABSENT
        if not self._parts:
            return None, known
        features = np.full((len(wanted), self._feature_dim), np.nan, dtype=np.float32)
        for number in np.unique(part[known]).tolist():
            here = part == number
            records = self._open.records(self._parts[number])
            if records is None:  # cleared or damaged since it was taken in
                known[here] = False
                self._forget(number)
            else:
                features[here] = records["feature"][self._row[wanted[here]]]
        return features, known

    def lookup_contents(self, contents: Sequence[bytes | None]) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_]]:
        """Return what caches of other data sets know of samples; see `SharedFeatures.lookup`."""
        if self._shared is None:
            return None, np.zeros(len(contents), dtype=bool)
        return self._shared.lookup(contents)

    def store(
        self,
        indices: NDArray[np.integer],
        features: NDArray[np.float32],
        contents: Sequence[bytes | None] = (),
    ) -> bool:
        """Keep the features of some samples.

        A disk that is full or cannot be written costs time in later runs but not this run: it is logged.

        Parameters
        ----------
        indices : numpy.ndarray
            ``(n,)`` non-negative integers.
        features : numpy.ndarray
            ``(n, d)`` float32, finite, d > 0.
        contents : sequence of bytes or None
            n digests of what the samples hold (`sample_digest`), to share them with other data sets; empty for not.

        Returns
        -------
        bool
            Whether they are on disk now.

        Raises
        ------
        ValueError
            If the arrays are not such.
        """
        wanted = _checked_indices(indices)
        n = len(wanted)
        if features.dtype != np.float32 or features.ndim != 2 or len(features) != n or features.shape[1] == 0:
            raise ValueError(
                f"features of {n} samples must be ({n}, d) float32, d > 0, got {features.dtype} {features.shape}"
            )
        if not np.isfinite(features).all():
            raise ValueError("features that are not finite are not cached")
        if len(wanted) == 0:
            return True
        records = np.empty(len(wanted), dtype=[("index", "<i8"), ("feature", "<f4", (features.shape[1],))])
        records["index"], records["feature"] = wanted, features
        try:
            part = write_part(self.folder, records)
        except OSError as error:
            logger.warning("features could not be cached in %s: %s", self.folder, error)
            return False
        if self._shared is not None and contents:
            self._shared.note(part, contents)
        return True

    def _find(self, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the part that knows each sample, or _ABSENT."""
        part = np.full(len(wanted), _ABSENT, dtype=np.int64)
        inside = wanted < len(self._part)
        part[inside] = self._part[wanted[inside]]
        return part

    def _scan(self) -> None:
        """Take in the parts that were written since the last time, in the order of their names."""
        for name in self._names.listed():
            path = self.folder / name
            if not is_part(path):
                continue
            try:
                changed = path.stat().st_mtime_ns
                if self._damaged.get(name) == changed:
                    continue
                self._damaged[name] = changed
                self._add(path, read_part(path))
            except FileNotFoundError:
                continue  # cleared by another process since it was listed
            except (OSError, ValueError) as error:
                logger.warning("cached features in %s are damaged and will be computed again: %s", path, error)
                continue
            del self._damaged[name]
            self._names.seen.add(name)

    def _forget(self, number: int) -> None:
        self._part[self._part == number] = _ABSENT
        self._names.seen.discard(self._parts[number].name)

    def _add(self, path: Path, records: NDArray[np.void]) -> None:
        dim = int(records["feature"].shape[1])
        if self._parts and dim != self._feature_dim:
            raise ValueError(f"features of {dim} numbers among those of {self._feature_dim}")
        self._feature_dim = dim
        indices = records["index"].astype(np.int64)
        grow = int(indices.max()) + 1 - len(self._part)
        if grow > 0:
            self._part = np.concatenate([self._part, np.full(grow, _ABSENT)])
            self._row = np.concatenate([self._row, np.zeros(grow, dtype=np.int64)])
        new = np.flatnonzero(self._part[indices] == _ABSENT)
        if new.size:
            self._part[indices[new]] = len(self._parts)
            self._row[indices[new]] = new
            self._parts.append(path)


def _checked_indices(indices: NDArray[np.integer]) -> NDArray[np.int64]:
    if indices.ndim != 1 or indices.dtype.kind not in "iu" or (indices.size and indices.min() < 0):
        raise ValueError(
            f"sample indices must be (n,) non-negative integers, got {indices.dtype} of shape {indices.shape}"
        )
    return indices.astype(np.int64)
