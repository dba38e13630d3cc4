"""The frozen backbone's view of samples, in blocks, from the cache where they are in it."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.samples import check_kind
from fedstats_app.data import Dataset, FeatureCache, UnreadableSampleError
from fedstats_app.data.contents import sample_digest

T = TypeVar("T")

# Samples that wait for the network, for each thread.
_WAITING = 4

logger = logging.getLogger("fedstats_app")
# Features are handed on in blocks of this size whether they were computed or read from the cache: the order of
# additions, and so the last bits of the statistics, are the same either way.
BLOCK_SIZE = 1024


def read_ahead(read: Callable[[int], T], indices: Iterable[int], threads: int) -> Iterator[Callable[[], T]]:
    """Call a function on every index, some of them ahead of whoever takes the results.

    Parameters
    ----------
    read : callable
        From an index to what is wanted; with several threads it is called by several at once.
    indices : iterable of int
        In the order in which results are wanted.
    threads : int
        That read ahead; 0 for none: everything is then read when it is taken.

    Yields
    ------
    callable
        Returns the result for the next index, or raises what the function raised.
    """
    if not threads:
        yield from (functools.partial(read, index) for index in indices)
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        try:
            for index in indices:
                waiting.append(pool.submit(read, index))
                if len(waiting) > _WAITING * threads:
                    yield waiting.popleft().result
            while waiting:
                yield waiting.popleft().result
        finally:  # whoever took the results has had enough
            for one in waiting:
                one.cancel()


@dataclass
class FeatureReader:
    """Reads samples, runs the backbone and keeps features on disk if asked to.

    Attributes
    ----------
    backbone : Backbone
        Frozen.
    cache_root : Path or None
        Folder of the feature cache, None for none.
    num_unreadable : int
        Samples that could not be read so far.
    read_threads : int
        Threads that read, decode and transform images ahead of the network; texts are read when they are wanted.
    """

    backbone: Backbone
    cache_root: Path | None = None
    num_unreadable: int = 0
    read_threads: int = 0

    def blocks(self, dataset: Dataset, indices: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the features of samples in their order; unreadable ones are counted, named in the log and left out.

        Parameters
        ----------
        dataset : Dataset
            Where the samples are.
        indices : ndarray
            (n,) which ones.

        Yields
        ------
        features : Tensor
            (b, d) float32 on the backbone's device, b at most ``BLOCK_SIZE``.
        positions : Tensor
            (b,) int64 into ``indices``.

        Raises
        ------
        ValueError
            If the data are of another kind than the backbone takes.
        """
        check_kind(dataset, self.backbone)
        cache = self._cache(dataset)
        for start in range(0, len(indices), BLOCK_SIZE):
            block = indices[start : start + BLOCK_SIZE]
            features, positions = self._block(dataset, block, cache)
            if len(positions):
                yield features, positions + start

    def has_cached(self, dataset: Dataset) -> bool:
        """Return whether features of some of its samples are on disk; none of them is read."""
        cache = self._cache(dataset)
        return cache is not None and cache.folder.is_dir()

    def _block(self, dataset: Dataset, indices: NDArray[np.int64], cache: FeatureCache | None) -> tuple[Tensor, Tensor]:
        cached, known = (None, np.zeros(len(indices), dtype=bool)) if cache is None else cache.lookup(indices)
        if cached is not None and known.all():  # a client of a few images would pay for every copy
            return torch.from_numpy(cached).to(self.backbone.device), torch.arange(len(indices))
        features = torch.zeros(len(indices), self.backbone.feature_dim, device=self.backbone.device)
        if cached is not None:
            features[torch.from_numpy(known)] = torch.from_numpy(cached[known]).to(self.backbone.device)
        missing = np.flatnonzero(~known)
        contents: dict[int, bytes | None] = {}
        if cache is not None and len(missing):
            contents = {p: sample_digest(dataset, int(indices[p])) for p in missing.tolist()}
            shared, found = cache.lookup_contents([*contents.values()])
            if shared is not None and found.any():
                here = missing[found]
                features[torch.from_numpy(here)] = torch.from_numpy(shared[found]).to(self.backbone.device)
                cache.store(indices[here], shared[found], [contents[p] for p in here.tolist()])
                known[here], missing = True, missing[~found]
        read: list[int] = []
        done = 0
        for batch in self.backbone.extract_inputs(self._inputs(dataset, indices, missing, read)):
            features[torch.tensor(read[done : done + len(batch)])] = batch
            done += len(batch)
        if cache is not None and read:
            cache.store(indices[read], features[torch.tensor(read)].cpu().numpy(), [contents[p] for p in read])
        known[read] = True
        positions = torch.from_numpy(np.flatnonzero(known))
        return features[positions.to(features.device)], positions

    def _inputs(
        self, dataset: Dataset, indices: NDArray[np.int64], missing: NDArray[np.int64], read: list[int]
    ) -> Iterator[Tensor]:
        """Yield the samples that can be read, transformed, and append their positions to ``read``."""
        places, transform = missing.tolist(), self.backbone.transform

        def transformed(index: int) -> Tensor:
            return transform(dataset.sample(index))

        results = read_ahead(transformed, indices[missing].tolist(), self.read_threads * (dataset.kind == "image"))
        for position, result in zip(places, results, strict=True):
            try:
                one = result()
            except UnreadableSampleError as error:
                self.num_unreadable += 1
                # The name stays in this site's own log: file names can be personal data.
                logger.warning("left out: %s", error)
                continue
            read.append(position)
            yield one

    def _cache(self, dataset: Dataset) -> FeatureCache | None:
        if self.cache_root is None:
            return None
        backbone = self.backbone
        parts = (backbone.fingerprint, *backbone.computed_by)
        key = _digest((dataset.fingerprint, *parts))
        return _open_cache(self.cache_root, key, _digest((dataset.kind, *parts)))


def _digest(parts: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@functools.lru_cache(maxsize=4)
def _open_cache(root: Path, key: str, backbone: str) -> FeatureCache:
    """Keep caches open: their parts are mapped once per process."""
    return FeatureCache(root, key, backbone)
