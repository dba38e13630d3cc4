"""What `fedstats check --data` loads: network, samples and disk, and what a run would send, hold in memory and take."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.measurements import seconds_per_sample
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.cli.check.finding import Finding, Level
from fedstats_app.cli.inputs import readable
from fedstats_app.cli.terminal import printable
from fedstats_app.data import Dataset
from fedstats_app.data.clients import data_spec, own_dataset, partitions, test_split, training_set
from fedstats_app.data.description import check_classes, description, doubts
from fedstats_app.grid.federation_options import machine_bytes
from fedstats_app.grid.progress import Step, in_words
from fedstats_app.methods import METHODS, ConfiguredMethod
from fedstats_app.report.run_folder import DEFAULT_OUTPUT_DIR
from fedstats_app.report.text_columns import bytes_with_unit
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import ClientSize
from fedstats_app.wire.arrays import NUMBER_BYTES

# Spread over all of them: damaged files often come together.
SAMPLES_READ = 200
CLASSES_LISTED = 20
# A solve holds the Gram matrix, the scatter, eigenvectors and work space of the same size, in float64.
_MATRICES_IN_A_SOLVE = 6
# What a client sends beside its statistics: three numbers and the backbone's fingerprint.
REPLY_BYTES = 88
FREE_AT_LEAST = 100e6


def check_data(config: AppConfig, node: NodeConfig | None, weights: str, step: Step) -> Iterator[Finding]:
    """Check what a run works with, on a node with data of its own or in a simulation; then what it costs.

    Parameters
    ----------
    config : AppConfig
        Of the run.
    node : NodeConfig or None
        Of a node with data of its own; None for a simulation.
    weights : str
        The node's own path to the weights, "" for the run's.
    step : Step
        Is told what is being checked.
    """
    own_data = node is not None
    step.at(0, f"loading backbone {config.backbone.backbone}")
    finding, backbone = check_weights(config, own_data=own_data, weights=weights)
    yield finding
    step.at(0, "reading the list of samples")
    finding, dataset = load_data(config, node)
    yield finding
    clients: list[ClientSize] = []
    if dataset is not None:
        step.at(0, f"reading some of {len(dataset):,} {dataset.kind}s")
        yield check_samples(dataset)
        if backbone is not None and dataset.kind != backbone.kind:
            message = f"{backbone.name} takes {backbone.kind}s, the data are {dataset.kind}s"
            yield Finding("backbone and data", "FAIL", message, "name another backbone, or other data")
        if node is not None:
            yield check_class_counts(dataset, config, node)
        step.at(0, "counting samples by client")
        try:
            clients = client_sizes(dataset, config, own_data=own_data)
        except ValueError as error:
            yield Finding("partitions", "FAIL", str(error), "change num-clients or the partitioner")
    yield from check_disk(config, node, clients, backbone.feature_dim if backbone else 0)
    if backbone is not None and dataset is not None and clients and dataset.kind == backbone.kind:
        step.at(0, "timing the network")
        yield from check_cost(clients, backbone, config, dataset, own_data=own_data)


def check_weights(config: AppConfig, *, own_data: bool, weights: str) -> tuple[Finding, Backbone | None]:
    """Load the network as a run would, but without any download, and tell its fingerprint."""
    started = time.perf_counter()
    try:
        with offline():
            backbone = loaded_backbone(config.backbone_for(own_data=own_data, weights=weights))
    except (WeightsError, ValueError, ModuleNotFoundError) as error:
        advice = "name a file of this network in backbone-weights, or start a run once where downloads are possible"
        return Finding("backbone", "FAIL", str(error), advice), None
    size = f"at {backbone.input_size} pixels" if backbone.kind == "image" else f"up to {backbone.input_size} tokens"
    message = (
        f"{backbone.name} {size}, {backbone.feature_dim} features ({backbone.features}), on {backbone.device}; "
        f"weights: {backbone.weights_source}, licence {backbone.licence.name}; fingerprint "
        f"{backbone.fingerprint[:16]}; loaded in {time.perf_counter() - started:.1f} s"
    )
    warnings = " ".join(backbone.licence.warnings)
    return Finding("backbone", "warning" if warnings else "ok", message, warnings), backbone


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Forbid downloads of weights and data for a while."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        os.environ.pop("HF_HUB_OFFLINE")
        if before is not None:
            os.environ["HF_HUB_OFFLINE"] = before


def load_data(config: AppConfig, node: NodeConfig | None) -> tuple[Finding, Dataset | None]:
    """Load the data of a node, or of the simulation, without any download."""
    try:
        with offline():
            if node is None:
                dataset = training_set(config.data)
                test = test_split(config.data.test_dataset or config.data.dataset, config.data)
                check_classes(dataset)
            else:
                # As the node-config would say it: how to read, but no part of the data.
                reading = replace(config.data, classes="", left_out_domain="")
                dataset = own_dataset(node.data_path, reading)
                test = test_split(data_spec(node.data_path), reading)
    # What is missing for a data set of the hub shows as a failed connection or a missing library.
    except (ValueError, OSError, ImportError) as error:
        advice = "correct the data or the setting; docs/data.md says how data are read"
        return Finding("data", "FAIL", str(error), advice), None
    doubtful = [*dataset.notes, *doubts(dataset, test)]
    if node is not None and test is not None:
        doubtful.append("the test split is not used: a node keeps some samples of its own for evaluation")
    message = "; ".join([f"{dataset.name}: {description(dataset, test)}", *doubtful])
    if not doubtful:
        return Finding("data", "ok", message), dataset
    return Finding("data", "warning", message, "if the folders are not read as you meant, see docs/data.md"), dataset


def check_samples(dataset: Dataset) -> Finding:
    """Read some of the samples, spread over all."""
    indices, what = _some_of(dataset), f"{dataset.kind}s"
    unreadable: dict[str, str] = {}
    read = sum(1 for _ in readable(dataset, indices, [], unreadable))
    if not unreadable:
        return Finding(what, "ok", f"{read} of {len(dataset):,} read, all readable")
    named = "; ".join(f"{printable(name)}: {printable(reason, 200)}" for name, reason in list(unreadable.items())[:3])
    message = f"{len(unreadable)} of {len(indices)} that were tried cannot be read, such as {named}"
    if not read:
        return Finding(what, "FAIL", message, f"are these {what}, and may this user read them?")
    return Finding(what, "warning", message, f"a run leaves such {what} out and counts them; repair or remove them")


def _some_of(dataset: Dataset) -> list[int]:
    """Choose some samples, spread over all."""
    spread = np.linspace(0, len(dataset) - 1, min(SAMPLES_READ, len(dataset)))
    return [int(index) for index in np.unique(spread.astype(int))]


def check_class_counts(dataset: Dataset, config: AppConfig, node: NodeConfig) -> Finding:
    """Tell which classes have too few samples to leave a node."""
    floor, what = node.class_floor(config.federation.min_class_count), f"{dataset.kind}s"
    counts = np.bincount(dataset.labels, minlength=len(dataset.class_names)).tolist()
    named = zip(dataset.class_names, counts, strict=True)
    few = [f"{printable(name, 40)} ({number})" for name, number in named if number < floor]
    if not few:
        message = f"{min(counts)} to {max(counts)} {what} per class; {floor} must be there to leave"
        return Finding("class counts", "ok", message)
    message = (
        f"{len(few)} of {len(counts)} classes have fewer than {floor} {what} and do not leave this node: "
        f"{', '.join(few[:CLASSES_LISTED])}"
    )
    return Finding("class counts", "warning", message, f"add {what}, or set min-class-count in the node-config")


def client_sizes(dataset: Dataset, config: AppConfig, *, own_data: bool) -> list[ClientSize]:
    """Count the samples and classes of this node alone, or of all clients of a simulation."""
    parts = [np.arange(len(dataset))]
    if not own_data:
        parts = list(partitions(config.data, config.partition, config.run.seed))
    return [ClientSize(len(part), len(np.unique(dataset.labels[part]))) for part in parts]


def bytes_up(method: str, clients: list[ClientSize], feature_dim: int, config: AppConfig) -> int:
    """Sum the bytes that all clients together send for one method alone, without Flower's envelopes."""
    number = NUMBER_BYTES[config.federation.wire_dtype]
    spec = _sized_methods(config)[method].specification
    return spec.num_bytes(clients, feature_dim, number) + len(clients) * REPLY_BYTES


def server_bytes(clients: list[ClientSize], num_classes: int, feature_dim: int, config: AppConfig) -> int:
    """Estimate the memory that the server's process needs, above what this process has with the network loaded.

    It holds the window of replies, the largest solve, and the rows that are kept, of which clients send one or several
    per class that they have.
    """
    methods = _sized_methods(config).values()
    dim = max(one.specification.feature_map.output_dim(feature_dim) for one in methods)
    num_rows = sum(client.num_classes for client in clients)
    rows = max((num_rows * one.specification.means_per_class for one in methods if one.keeps_rows), default=num_classes)
    solve = _MATRICES_IN_A_SOLVE * dim**2 if any(one.method.solves_matrix for one in methods) else 0
    return config.federation.window_megabytes * 2**20 + 8 * (solve + 2 * rows * dim + 4 * num_classes * dim)


def _sized_methods(config: AppConfig) -> dict[str, ConfiguredMethod]:
    """Configure the run's methods; what is to be measured is taken of two features, since no size depends on it."""
    return config.measured(lambda: torch.eye(2), lambda line: None).configured_methods


def check_cost(
    clients: list[ClientSize], backbone: Backbone, config: AppConfig, dataset: Dataset, *, own_data: bool
) -> Iterator[Finding]:
    """Tell expected bytes, memory and time of a run; memory is compared with this machine's."""
    who, dim = "this node" if own_data else f"all {len(clients)} clients", backbone.feature_dim
    parts = [f"{name} {bytes_with_unit(bytes_up(name, clients, dim, config))}" for name in config.methods]
    yield Finding("bytes up", "ok", f"from {who}, each method alone: {', '.join(parts)}")
    if not own_data:
        yield _memory(process_bytes() + server_bytes(clients, len(dataset.class_names), dim, config))
    number, seconds = sum(client.num_samples for client in clients), _seconds_per_sample(dataset, backbone)
    yield Finding(
        "time",
        "ok",
        f"{1000 * seconds:.1f} ms per {dataset.kind} in the network ({backbone.device}, {torch.get_num_threads()} "
        f"threads), so about {in_words(seconds * number)} for {number:,} {dataset.kind}s on this machine, and the "
        "time to read them",
    )


def _memory(needed: int) -> Finding:
    total, message = machine_bytes(), f"about {bytes_with_unit(needed)} for the server's process"
    if total is None:
        return Finding("memory", "ok", message)
    message += f", of {bytes_with_unit(total)} in this machine"
    if needed > total:
        small = next(name for name, method in METHODS.items() if not method.solves_matrix)
        advice = f"set a smaller window-megabytes, fewer random features, or method={small}"
        return Finding("memory", "FAIL", message, advice)
    level: Level = "ok" if needed < 0.7 * total else "warning"
    return Finding("memory", level, message, "" if level == "ok" else "a simulation's clients need memory too")


def _seconds_per_sample(dataset: Dataset, backbone: Backbone) -> float:
    """Time the network on a blank image, or on the text of median length among some."""
    inputs = [backbone.transform.blank()]
    if backbone.kind == "text":
        found = map(backbone.transform, readable(dataset, _some_of(dataset), [], {}))
        inputs = sorted(found, key=lambda one: one.shape[-1]) or inputs
    return seconds_per_sample(backbone, inputs[len(inputs) // 2])


def check_disk(
    config: AppConfig, node: NodeConfig | None, clients: list[ClientSize], feature_dim: int
) -> Iterator[Finding]:
    """Check the free space where results and cached features go."""
    yield _free("results", Path(config.run.output_dir or DEFAULT_OUTPUT_DIR).expanduser(), 0)
    if cache := (node or NodeConfig()).cache_root(config.cache):
        yield _free("feature cache", cache, 4 * feature_dim * sum(client.num_samples for client in clients))


def _free(what: str, folder: Path, needed: int) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    message = f"{what} in {folder}: {bytes_with_unit(free)} free"
    message += f", about {bytes_with_unit(needed)} needed" if needed else ""
    if not os.access(there, os.W_OK):
        return Finding("disk", "FAIL", f"{message}; this user may not write there", "name another folder")
    if free < needed + FREE_AT_LEAST:
        return Finding("disk", "FAIL", message, "make room, or name another folder (output-dir, cache-dir)")
    return Finding("disk", "ok", message)


def process_bytes() -> int:
    """Read the largest memory that this process has had."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
