"""What `fedstats check --data` loads: network, samples and disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.base.progress import Step
from fedstats_app.base.runs import DEFAULT_OUTPUT_DIR
from fedstats_app.cli.inputs import readable
from fedstats_app.cli.terminal import Finding, printable
from fedstats_app.data import Dataset
from fedstats_app.data.clients import data_spec, own_dataset, partitions, test_split, training_set
from fedstats_app.data.description import check_classes, description, doubts
from fedstats_app.report.text_columns import bytes_with_unit
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

# Spread over all of them: damaged files often come together.
SAMPLES_READ = 200
CLASSES_LISTED = 20
FREE_AT_LEAST = 100e6


def check_data(config: AppConfig, node: NodeConfig | None, weights: str, step: Step) -> Iterator[Finding]:
    """Check what a run works with, on a node with data and maybe weights of its own, or in a simulation."""
    step.at(0, f"loading backbone {config.backbone.backbone}")
    finding, backbone = check_weights(config, own_data=node is not None, weights=weights)
    yield finding
    step.at(0, "reading the list of samples")
    finding, dataset = load_data(config, node)
    yield finding
    if dataset is not None:
        step.at(0, f"reading some of {len(dataset):,} {dataset.kind}s")
        yield check_samples(dataset)
        if backbone is not None and dataset.kind != backbone.kind:
            message = f"{backbone.name} takes {backbone.kind}s, the data are {dataset.kind}s"
            yield Finding("backbone and data", "FAIL", message, "name another backbone, or other data")
        if node is not None:
            yield check_class_counts(dataset, config, node)
        else:
            yield check_partitions(config)
    yield from check_disk(config, node, len(dataset or ()) * (backbone.feature_dim if backbone else 0))


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
        f"weights: {backbone.weights_source}, licence {backbone.licence}; fingerprint "
        f"{backbone.fingerprint[:16]}; loaded in {time.perf_counter() - started:.1f} s"
    )
    return Finding("backbone", "ok", message), backbone


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
    advice = "if the folders are not read as you meant, see docs/data.md" if doubtful else ""
    return Finding("data", "warning" if doubtful else "ok", message, advice), dataset


def check_samples(dataset: Dataset) -> Finding:
    """Read some of the samples, spread over all."""
    spread = np.linspace(0, len(dataset) - 1, min(SAMPLES_READ, len(dataset)))
    indices, what = np.unique(spread.astype(int)).tolist(), f"{dataset.kind}s"
    unreadable: dict[str, str] = {}
    read = sum(1 for _ in readable(dataset, indices, [], unreadable))
    if not unreadable:
        return Finding(what, "ok", f"{read} of {len(dataset):,} read, all readable")
    named = "; ".join(f"{printable(name)}: {printable(reason, 200)}" for name, reason in list(unreadable.items())[:3])
    message = f"{len(unreadable)} of {len(indices)} that were tried cannot be read, such as {named}"
    if not read:
        return Finding(what, "FAIL", message, f"are these {what}, and may this user read them?")
    return Finding(what, "warning", message, f"a run leaves such {what} out and counts them; repair or remove them")


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


def check_partitions(config: AppConfig) -> Finding:
    """Divide the data of a simulation as the settings say, or tell why that cannot be done."""
    try:
        parts = partitions(config.data, config.partition, config.run.seed)
    except ValueError as error:
        return Finding("partitions", "FAIL", str(error), "change num-clients or the partitioner")
    sizes = sorted(map(len, parts))
    return Finding("partitions", "ok", f"{len(parts):,} clients of {sizes[0]:,} to {sizes[-1]:,} samples")


def check_disk(config: AppConfig, node: NodeConfig | None, num_features: int) -> Iterator[Finding]:
    """Check the free space where results and so many cached numbers go."""
    yield _free("results", Path(config.run.output_dir or DEFAULT_OUTPUT_DIR).expanduser(), 0)
    if cache := (node or NodeConfig()).cache_root(config.cache):
        yield _free("feature cache", cache, 4 * num_features)


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
