"""One client's samples and their features: which they are, and the frozen backbone's view of them, in blocks.

Apart from Flower: what is read of run-config and node-config arrives as :class:`AppConfig` and :class:`NodeConfig`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.backbones import Backbone, TextOptions, load_backbone
from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.data import (
    Dataset,
    FeatureCache,
    Sample,
    UnreadableSampleError,
    default_cache_root,
    load_dataset,
    partition,
)
from fedstats_app.own_data import NamedColumns, hidden_classes, is_table, named_columns, own_dataset
from fedstats_app.samples import check_kind

logger = logging.getLogger("fedstats_app")

BUILTIN_INPUT_SIZE = 64
# Features are handed on in blocks of this size whether they were computed or read from the cache: the order of
# additions, and so the last bits of the statistics, are the same either way.
BLOCK_SIZE = 1024
STATE_FOLDER = "state"


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
    """

    backbone: Backbone
    cache_root: Path | None = None
    num_unreadable: int = 0

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

    def _block(self, dataset: Dataset, indices: NDArray[np.int64], cache: FeatureCache | None) -> tuple[Tensor, Tensor]:
        known = np.zeros(len(indices), dtype=bool)
        features = torch.zeros(len(indices), self.backbone.feature_dim, device=self.backbone.device)
        if cache is not None:
            cached, known = cache.lookup(indices)
            if cached is not None:
                features[torch.from_numpy(known)] = torch.from_numpy(cached[known]).to(self.backbone.device)
        missing = np.flatnonzero(~known)
        read: list[int] = []
        done = 0
        for batch in self.backbone.extract(self._samples(dataset, indices, missing, read)):
            features[torch.tensor(read[done : done + len(batch)])] = batch
            done += len(batch)
        if cache is not None and read:
            cache.store(indices[read], features[torch.tensor(read)].cpu().numpy())
        known[read] = True
        positions = torch.from_numpy(np.flatnonzero(known))
        return features[positions.to(features.device)], positions

    def _samples(
        self, dataset: Dataset, indices: NDArray[np.int64], missing: NDArray[np.int64], read: list[int]
    ) -> Iterator[Sample]:
        """Yield the samples that can be read and append their positions to ``read``."""
        for position in missing.tolist():
            try:
                sample = dataset.sample(int(indices[position]))
            except UnreadableSampleError as error:
                self.num_unreadable += 1
                # The name stays in this site's own log: file names can be personal data.
                logger.warning("left out: %s", error)
                continue
            read.append(position)
            yield sample

    def _cache(self, dataset: Dataset) -> FeatureCache | None:
        if self.cache_root is None:
            return None
        backbone = self.backbone
        parts = (
            dataset.fingerprint,
            backbone.fingerprint,
            str(backbone.batch_size),
            backbone.autocast,
            str(backbone.channels_last),
            backbone.device.type,
            torch.__version__,
        )
        return _open_cache(self.cache_root, hashlib.sha256("\n".join(parts).encode()).hexdigest())


@functools.lru_cache(maxsize=4)
def _open_cache(root: Path, key: str) -> FeatureCache:
    """Keep caches open: their parts are mapped once per process."""
    return FeatureCache(root, key)


def input_size(config: AppConfig, *, own_data: bool) -> int:
    """Return the input size to load the backbone with: the built-in sample's 28 pixels need not become 224."""
    if config.takes_text:
        return config.text_max_length
    return config.input_size or (BUILTIN_INPUT_SIZE if config.dataset == "builtin" and not own_data else 0)


def backbone_for(config: AppConfig, *, own_data: bool, weights: str = "") -> Backbone:
    """Return the backbone of a configuration, loaded once per process.

    Parameters
    ----------
    config : AppConfig
        Of the run.
    own_data : bool
        Whether clients are nodes with data of their own.
    weights : str
        A node's own path to the weights; "" for the run's.
    """
    return _load_backbone(
        config.backbone,
        weights or config.backbone_weights,
        input_size(config, own_data=own_data),
        config.batch_size,
        config.device,
        config.autocast,
        config.channels_last,
        "group" if config.batch_norm == "groupnorm" else "batch",
        TextOptions(config.text_pooling, config.text_template),
    )


@functools.lru_cache(maxsize=1)
def _load_backbone(
    name: str,
    weights: str,
    size: int,
    batch_size: int,
    device: str,
    autocast: str,
    channels_last: bool,
    norm: Literal["batch", "group"],
    text: TextOptions,
) -> Backbone:
    started = time.perf_counter()
    backbone = load_backbone(
        name,
        weights=weights,
        input_size=size,
        batch_size=batch_size,
        device=device,
        autocast=autocast,
        channels_last=channels_last,
        norm=norm,
        text=text,
    )
    logger.info("loaded %r in %.1f s", backbone, time.perf_counter() - started)
    return backbone


def training_set(config: AppConfig) -> Dataset:
    """Return the data set that clients are partitions of."""
    return _training_split(config.dataset, named_columns(config))


@functools.lru_cache(maxsize=2)
def _training_split(spec: str, columns: NamedColumns) -> Dataset:
    return load_dataset(spec, "train", **dict(columns))


def test_split(spec: str, columns: NamedColumns = ()) -> Dataset | None:
    """Return the test split of a data set, or None if it has none; of tables, with the columns that are named."""
    return load_dataset(spec, "test", **(dict(columns) if is_table(spec) else {}))


def partitions(config: AppConfig) -> list[NDArray[np.int64]]:
    """Return the samples of every client of a simulation, drawn once per process."""
    return _partitions(
        config.dataset,
        named_columns(config),
        config.partitioner,
        config.num_clients,
        config.dirichlet_alpha,
        config.partition_column,
        config.classes_per_client,
        config.partition_uniform_share,
        config.seed,
    )


@functools.lru_cache(maxsize=2)
def _partitions(
    spec: str,
    columns: NamedColumns,
    partitioner: str,
    num_clients: int,
    alpha: float,
    column: str,
    classes_per_client: int,
    uniform_share: float,
    seed: int,
) -> list[NDArray[np.int64]]:
    return partition(
        _training_split(spec, columns),
        partitioner=partitioner,
        num_clients=num_clients,
        alpha=alpha,
        column=column,
        classes_per_client=classes_per_client,
        uniform_share=uniform_share,
        seed=seed,
    )


def _aligned(dataset: Dataset, class_names: tuple[str, ...], floor: int) -> Dataset:
    """Return the data with the federation's classes, without the samples of classes that it was not told of."""
    hidden = [c for c in hidden_classes(dataset, floor) if dataset.class_names[c] not in class_names]
    left_out = np.isin(dataset.labels, hidden)
    if left_out.any():
        dataset = dataset.subset(np.flatnonzero(~left_out))
    return dataset.with_class_names(class_names)


def client_samples(
    config: AppConfig, node: NodeConfig, client_id: int | None, class_names: tuple[str, ...]
) -> tuple[Dataset, NDArray[np.int64]]:
    """Return the data set and the sample indices of one client.

    Parameters
    ----------
    config, node
        Of the run and of the node.
    client_id : int or None
        Partition; None where the node is one client.
    class_names : tuple of str
        The federation's classes, to which labels are aligned by name; or empty. Samples of classes that a node's floor
        keeps out of them are left out.

    Raises
    ------
    ValueError
        If the node has no such client.
    """
    if node.data_path:
        dataset = own_dataset(node, config)
        if class_names:
            dataset = _aligned(dataset, class_names, node.class_floor(config))
        return dataset, np.arange(len(dataset))
    if client_id is None:
        raise ValueError("a node that hosts partitions must be asked for one of them")
    parts = partitions(config)
    if not 0 <= client_id < len(parts):
        raise ValueError(f"client must lie in [0, {len(parts)}), got {client_id}")
    dataset = training_set(config)
    return dataset.with_class_names(class_names) if class_names else dataset, parts[client_id]


def split_holdout(
    indices: NDArray[np.int64], fraction: float, seed: int, client_id: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a client's samples for statistics and those it keeps for evaluation, drawn by (seed, client).

    A client with one sample keeps it for statistics.
    """
    if fraction == 0.0:
        return indices, indices[:0]
    order = np.random.default_rng([seed, 0 if client_id is None else client_id]).permutation(len(indices))
    held_out = min(round(fraction * len(indices)), max(len(indices) - 1, 0))
    return np.sort(indices[order[held_out:]]), np.sort(indices[order[:held_out]])


def cache_root(config: AppConfig, node: NodeConfig) -> Path | None:
    """Return the feature cache's folder, or None.

    A run can only do without it. There is one in a simulation, and on a node with data of its own if its owner names a
    ``cache-dir``: features are as personal as the images.
    """
    if config.feature_cache == "off" or (node.data_path and not node.cache_dir):
        return None
    return _cache_folder(config, node)


def state_root(config: AppConfig, node: NodeConfig) -> Path:
    """Return the folder of what must last on a node between the messages of a run, a client's own model say."""
    return Path(node.state_dir).expanduser() if node.state_dir else _cache_folder(config, node) / STATE_FOLDER


def _cache_folder(config: AppConfig, node: NodeConfig) -> Path:
    # Nor does a run say where files go on a machine that is not its own.
    folder = node.cache_dir or ("" if node.data_path else config.cache_dir)
    return Path(folder).expanduser() if folder else default_cache_root()
