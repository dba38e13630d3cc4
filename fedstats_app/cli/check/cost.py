"""What a run would send, hold in memory, keep on disk and take, from sizes and a timed forward pass."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.measurements import seconds_per_sample
from fedstats_app.cli.check.finding import Finding, Level
from fedstats_app.cli.check.samples import some_of
from fedstats_app.cli.sample_files import readable
from fedstats_app.data import Dataset
from fedstats_app.data.clients import partitions
from fedstats_app.grid.federation_options import machine_bytes
from fedstats_app.grid.progress import in_words
from fedstats_app.methods import METHODS, ConfiguredMethod
from fedstats_app.report.run_folder import DEFAULT_OUTPUT_DIR
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import ClientSize
from fedstats_app.wire.arrays import NUMBER_BYTES

# A solve holds the Gram matrix, the scatter, eigenvectors and work space of the same size, in float64.
_MATRICES_IN_A_SOLVE = 6
# What a client sends beside its statistics: three numbers and the backbone's fingerprint.
_REPLY_BYTES = 88
FREE_AT_LEAST = 100e6
_PARTITIONED_AT_MOST = 2_000_000


@dataclass(frozen=True)
class Sizes:
    """What a run's cost depends on.

    Attributes
    ----------
    clients : tuple of ClientSize
        Of this node alone, or of the whole simulation.
    num_classes : int
        C.
    """

    clients: tuple[ClientSize, ...]
    num_classes: int

    @property
    def num_samples(self) -> int:
        """N."""
        return sum(client.num_samples for client in self.clients)

    @property
    def num_rows(self) -> int:
        """M, pairs of a client and a class that it has."""
        return sum(client.num_classes for client in self.clients)


def sizes_of(dataset: Dataset, config: AppConfig, *, own_data: bool) -> Sizes:
    """Count a node's data, or all clients of a simulation."""
    num_classes = len(dataset.class_names)
    if own_data:
        return Sizes((ClientSize(len(dataset), len(np.unique(dataset.labels))),), num_classes)
    num_clients = config.partition.num_clients
    if len(dataset) > _PARTITIONED_AT_MOST and num_clients:
        alike = ((len(dataset) + client) // num_clients for client in range(num_clients))
        return Sizes(tuple(ClientSize(num_samples, num_classes) for num_samples in alike), num_classes)
    parts = partitions(config.data, config.partition, config.run.seed)
    return Sizes(tuple(ClientSize(len(part), len(np.unique(dataset.labels[part]))) for part in parts), num_classes)


def bytes_up(method: str, sizes: Sizes, feature_dim: int, config: AppConfig) -> int:
    """Return the bytes that all clients together send for one method alone, without Flower's envelopes."""
    number = NUMBER_BYTES[config.federation.wire_dtype]
    spec = _sized_methods(config)[method].specification
    return spec.num_bytes(sizes.clients, feature_dim, number) + len(sizes.clients) * _REPLY_BYTES


def server_bytes(sizes: Sizes, feature_dim: int, config: AppConfig) -> int:
    """Return the memory that the server's process needs, above what this process has with the network loaded.

    The window of replies, the largest solve, and the rows that are kept, of which clients send one or several per
    class that they have.
    """
    methods = _sized_methods(config).values()
    dim = max(one.specification.feature_map.output_dim(feature_dim) for one in methods)
    kept = [sizes.num_rows * one.specification.means_per_class for one in methods if one.keeps_rows]
    solve = _MATRICES_IN_A_SOLVE * dim**2 if any(one.method.solves_matrix for one in methods) else 0
    rows = max(kept, default=sizes.num_classes)
    return config.federation.window_megabytes * 2**20 + 8 * (solve + 2 * rows * dim + 4 * sizes.num_classes * dim)


def _sized_methods(config: AppConfig) -> dict[str, ConfiguredMethod]:
    """Return the run's methods; what is to be measured is taken of two features, since no size depends on it."""
    return config.measured(lambda: torch.eye(2), lambda line: None).configured_methods


def check_cost(
    sizes: Sizes, backbone: Backbone, config: AppConfig, dataset: Dataset, *, own_data: bool
) -> Iterator[Finding]:
    """Tell expected bytes, memory and time of a run; memory is compared with this machine's."""
    who = "this node" if own_data else f"all {len(sizes.clients)} clients"
    parts = [f"{name} {megabytes(bytes_up(name, sizes, backbone.feature_dim, config))}" for name in config.methods]
    yield Finding("bytes up", "ok", f"from {who}, each method alone: {', '.join(parts)}")
    if not own_data:
        yield _memory(sizes, backbone, config)
    seconds = seconds_per_sample(backbone, typical_input(dataset, backbone))
    total = seconds * sizes.num_samples
    yield Finding(
        "time",
        "ok",
        f"{1000 * seconds:.1f} ms per {dataset.kind} in the network ({backbone.device}, {torch.get_num_threads()} "
        f"threads), so about {in_words(total)} for {sizes.num_samples:,} {dataset.kind}s on this machine, and the "
        "time to read them",
    )


def _memory(sizes: Sizes, backbone: Backbone, config: AppConfig) -> Finding:
    present, needed = process_bytes(), server_bytes(sizes, backbone.feature_dim, config)
    total = machine_bytes()
    message = f"about {megabytes(present + needed)} for the server's process"
    if total is None:
        return Finding("memory", "ok", message)
    message += f", of {megabytes(total)} in this machine"
    if present + needed > total:
        small = next(name for name, method in METHODS.items() if not method.solves_matrix)
        advice = f"set a smaller window-megabytes, fewer random features, or method={small}"
        return Finding("memory", "FAIL", message, advice)
    level: Level = "ok" if present + needed < 0.7 * total else "warning"
    return Finding("memory", level, message, "" if level == "ok" else "a simulation's clients need memory too")


def typical_input(dataset: Dataset, backbone: Backbone) -> torch.Tensor:
    """Return what a sample of the usual size becomes: of texts the one of median length among some of them."""
    if backbone.kind == "image":
        return backbone.transform.blank()
    found = readable(dataset, some_of(dataset), [], {})
    inputs = sorted((backbone.transform(sample) for sample in found), key=lambda one: one.shape[-1])
    return inputs[len(inputs) // 2] if inputs else backbone.transform.blank()


def check_disk(config: AppConfig, node: NodeConfig | None, sizes: Sizes | None, feature_dim: int) -> Iterator[Finding]:
    """Check the free space where results and cached features go."""
    yield _free("results", Path(config.run.output_dir or DEFAULT_OUTPUT_DIR).expanduser(), 0)
    cache = (node or NodeConfig()).cache_root(config.cache)
    if cache is not None:
        yield _free("feature cache", cache, 4 * feature_dim * sizes.num_samples if sizes else 0)


def _free(what: str, folder: Path, needed: int) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    message = f"{what} in {folder}: {megabytes(free)} free" + (f", about {megabytes(needed)} needed" if needed else "")
    if not os.access(there, os.W_OK):
        return Finding("disk", "FAIL", f"{message}; this user may not write there", "name another folder")
    if free < needed + FREE_AT_LEAST:
        return Finding("disk", "FAIL", message, "make room, or name another folder (output-dir, cache-dir)")
    return Finding("disk", "ok", message)


def process_bytes() -> int:
    """Return the largest memory that this process has had; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def megabytes(number: float) -> str:
    """Write bytes in decimal units."""
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number / 1e3:,.1f} kB"
