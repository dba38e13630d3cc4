"""A client's samples: their features in blocks, from the cache where they are in it, or transformed for training."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.base.progress import Progress
from fedstats_app.base.threads import Room, ahead, share_of_memory
from fedstats_app.data import Dataset, FeatureCache, Sample, UnreadableSampleError
from fedstats_app.data.contents import sample_digest

T = TypeVar("T")

logger = logging.getLogger("fedstats_app")
# Features are handed on in blocks of this size whether they were computed or read from the cache: the order of
# additions, and so the last bits of the statistics, are the same either way.
BLOCK_SIZE = 1024


# Images that a thread reads at a time.
READ_TOGETHER = 4
# Of an image and the network's input together. To read 128 pixels a side takes a millisecond; below, threads of Python
# wait for each other longer than that.
PIXELS_FOR_A_THREAD = 2**16
# Images that are decoded at the same time take an eighth of the memory, if 16 bytes are a pixel in some copies.
BYTES_OF_A_PIXEL = 8 * 16
# Transformed samples of one client are kept in memory while it trains if they take no more than this.
MEMORY_FOR_SAMPLES = 2**30


def check_kind(dataset: Dataset, backbone: Backbone) -> None:
    """Refuse images for a language model, and texts for an image network, by a ValueError."""
    if dataset.kind != backbone.kind:
        raise ValueError(
            f"backbone {backbone.name} takes {backbone.kind}s, but {dataset.name} holds {dataset.kind}s: "
            "name another backbone or another dataset"
        )


@dataclass
class FeatureReader:
    """Reads samples, runs the backbone and keeps features on disk if asked to.

    Attributes
    ----------
    cache_root : Path or None
        Folder of the feature cache, None for none.
    num_unreadable : int
        Samples of finished blocks that could not be read.
    progress : Progress or None
        Whose lines say how many samples have features.
    samples : str
        What they are in these lines; "" for the backbone's kind.
    """

    backbone: Backbone
    cache_root: Path | None = None
    num_unreadable: int = 0
    progress: Progress | None = None
    samples: str = ""

    def blocks(self, dataset: Dataset, indices: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the features of samples in their order; unreadable ones are counted, named in the log and left out.

        Errors are those of :func:`check_kind`.

        Yields
        ------
        features : Tensor
            (b, d) float32 on the backbone's device, b at most ``BLOCK_SIZE``.
        positions : Tensor
            (b,) int64 into ``indices``.
        """
        check_kind(dataset, self.backbone)
        caches = [(network, self._cache(dataset, network)) for network in self.backbone.networks]
        progress = self.progress or Progress(lambda line: None)
        kind, total = self.samples or f"{self.backbone.kind}s", len(indices)
        with progress.doing(f"features of {{done}} of {{total}} {kind}", total) as step:

            def note(network: Backbone, number: int) -> None:
                if network is self.backbone.networks[-1]:  # of several side by side
                    step.at(step.done + number)
                progress.beat()

            for start in range(0, len(indices), BLOCK_SIZE):
                positions = torch.arange(start, min(start + BLOCK_SIZE, len(indices)))
                parts: list[Tensor] = []
                for network, cache in caches:
                    features, found = self._block(network, dataset, indices[positions.numpy()], cache, note)
                    parts, positions = [*(part[found] for part in parts), features], positions[found]
                if len(positions):
                    yield self.backbone.join(parts), positions

    def _block(
        self,
        network: Backbone,
        dataset: Dataset,
        indices: NDArray[np.int64],
        cache: FeatureCache | None,
        note: Callable[[Backbone, int], None],
    ) -> tuple[Tensor, Tensor]:
        """Return the features of samples by one network, and positions of those that could be read."""
        cached, known = (None, np.zeros(len(indices), dtype=bool)) if cache is None else cache.lookup(indices)
        note(network, int(known.sum()))
        if cached is not None and known.all():  # a client of a few images would pay for every copy
            return torch.from_numpy(cached).to(network.device), torch.arange(len(indices))
        features = torch.zeros(len(indices), network.feature_dim, device=network.device)
        if cached is not None:
            features[torch.from_numpy(known)] = torch.from_numpy(cached[known]).to(network.device)
        missing = np.flatnonzero(~known)
        contents: dict[int, bytes | None] = {}
        if cache is not None and len(missing):
            contents = {p: sample_digest(dataset, int(indices[p])) for p in missing.tolist()}
            shared, found = cache.lookup_contents([*contents.values()])
            if shared is not None and found.any():
                here = missing[found]
                features[torch.from_numpy(here)] = torch.from_numpy(shared[found]).to(network.device)
                cache.store(indices[here], shared[found], [contents[p] for p in here.tolist()])
                known[here], missing = True, missing[~found]
                note(network, len(here))
        read: list[int] = []

        def inputs() -> Iterator[Tensor]:
            for position, sample in _readable(dataset, indices, missing, network):
                read.append(position)
                yield sample

        done = 0
        for batch in network.extract_inputs(inputs()):
            features[torch.tensor(read[done : done + len(batch)])] = batch
            done += len(batch)
            note(network, len(batch))
        self.num_unreadable += len(missing) - done
        note(network, len(missing) - done)
        if cache is not None and read:
            cache.store(indices[read], features[torch.tensor(read)].cpu().numpy(), [contents[p] for p in read])
        known[read] = True
        positions = torch.from_numpy(np.flatnonzero(known))
        return features[positions.to(features.device)], positions

    def _cache(self, dataset: Dataset, network: Backbone) -> FeatureCache | None:
        if self.cache_root is None:
            return None
        parts = (network.fingerprint, *network.computed_by)
        return FeatureCache(self.cache_root, _digest((dataset.fingerprint,)), _digest((dataset.kind, *parts)))


def _readable(
    dataset: Dataset, indices: NDArray[np.int64], positions: NDArray[np.int64], network: Backbone
) -> Iterator[tuple[int, Tensor]]:
    """Yield the samples at some positions of the indices, transformed; what cannot be read is named in the log."""
    found = _inputs_ahead(dataset, indices[positions].tolist(), network)
    for position, sample in zip(positions.tolist(), found, strict=True):
        if isinstance(sample, Tensor):
            yield position, sample
        else:
            # The name stays in this site's own log: file names can be personal data.
            logger.warning("left out: %s", sample)


def read_ahead(
    dataset: Dataset, indices: Sequence[int], made: Callable[[int, Sample], T], input_size: int
) -> Iterator[T | UnreadableSampleError]:
    """Read samples in their order; images that take long in as many threads as torch has, ahead of who takes them.

    Parameters
    ----------
    dataset : Dataset
        Where they are.
    indices : sequence of int
        Which, in [0, n).
    made : callable
        From an index and its sample to what is wanted of it, such as a network's input; a photograph itself, of which
        many would wait in memory, should not be.
    input_size : int
        Side to which images are resized, in pixels.

    Yields
    ------
    object or UnreadableSampleError
        What was made of each sample, or why it cannot be read.
    """
    room = Room(share_of_memory(BYTES_OF_A_PIXEL))
    most_pixels = 0

    def read(index: int) -> T | UnreadableSampleError:
        with room.shared() as take:

            def begin(pixels: int) -> None:
                nonlocal most_pixels
                most_pixels = max(most_pixels, pixels)
                take(pixels)

            try:
                return made(index, dataset.sample(index, begin))
            except UnreadableSampleError as error:
                return error

    def several(start: int) -> list[T | UnreadableSampleError]:
        return [read(index) for index in indices[start : start + READ_TOGETHER]]

    yield from several(0)
    take_long = most_pixels and most_pixels + input_size**2 >= PIXELS_FOR_A_THREAD
    jobs = (functools.partial(several, start) for start in range(READ_TOGETHER, len(indices), READ_TOGETHER))
    for group in ahead(jobs, torch.get_num_threads() if take_long else 1):
        yield from group


def _inputs_ahead(
    dataset: Dataset, indices: Sequence[int], network: Backbone
) -> Iterator[Tensor | UnreadableSampleError]:
    return read_ahead(dataset, indices, lambda _, sample: network.transform(sample), network.input_size)


def _digest(parts: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class DatasetSamples:
    """Transformed samples of either kind with labels; what cannot be read is counted, named in the log and left out.

    Samples that fit into ``MEMORY_FOR_SAMPLES`` together are read once; others whenever they are asked for. Errors are
    those of :func:`check_kind`.

    Attributes
    ----------
    labels : Tensor
        (m,) int64, of the readable ones of n samples, in their order.
    positions : Tensor
        (m,) int64 in [0, n), which those are.
    """

    def __init__(self, dataset: Dataset, indices: NDArray[np.int64], backbone: Backbone) -> None:
        check_kind(dataset, backbone)
        self._dataset, self._backbone = dataset, backbone
        largest = max(int(np.prod(shape)) for shape in backbone.transform.shapes) * backbone.transform.dtype.itemsize
        keep = len(indices) * largest <= MEMORY_FOR_SAMPLES
        positions: list[int] = []
        inputs: list[Tensor] = []
        for position, sample in _readable(dataset, indices, np.arange(len(indices)), backbone):
            positions.append(position)
            if keep:
                inputs.append(sample)
        self.positions = torch.tensor(positions, dtype=torch.int64)
        self._indices = indices[self.positions.numpy()]
        self._inputs = inputs if keep else None
        self.labels = torch.from_numpy(np.array(dataset.labels[self._indices], dtype=np.int64))
        self.num_unreadable = len(indices) - len(positions)

    def inputs(self, indices: Tensor) -> Tensor:
        """Read some samples by their positions (b,).

        Returns
        -------
        Tensor
            Images (b, 3, H, W) float32 in the backbone's memory layout; or token ids and attention masks (b, 2, T)
            int64, T that of the longest text.

        Raises
        ------
        UnreadableSampleError
            If one can be read no more.
        """
        if self._inputs is not None:
            chosen = [self._inputs[position] for position in indices.tolist()]
        else:
            chosen = []
            for sample in _inputs_ahead(self._dataset, self._indices[indices.numpy()].tolist(), self._backbone):
                if isinstance(sample, UnreadableSampleError):
                    raise sample
                chosen.append(sample)
        layout = torch.channels_last if self._backbone.channels_last else torch.contiguous_format
        return self._backbone.transform.stack(chosen).contiguous(memory_format=layout)
