"""Whether the network and the data are on this machine and can be read, and which classes there are."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.cli.check.finding import Finding
from fedstats_app.cli.sample_files import readable
from fedstats_app.cli.text import printable
from fedstats_app.data import Dataset
from fedstats_app.data.clients import data_spec, own_dataset, test_split, training_set
from fedstats_app.data.description import check_classes, description, doubts
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

# Spread over all of them: damaged files often come together.
SAMPLES_READ = 200
CLASSES_LISTED = 20


def check_weights(config: AppConfig, *, own_data: bool, weights: str) -> tuple[Finding, Backbone | None]:
    """Load the network as a run would, but without any download, and tell its fingerprint.

    Parameters
    ----------
    config : AppConfig
        Of the run.
    own_data : bool
        Whether this is a node with data of its own.
    weights : str
        The node's own path to the weights, "" for the run's.
    """
    started = time.perf_counter()
    try:
        with offline():
            backbone = loaded_backbone(config.backbone_for(own_data=own_data, weights=weights))
    except (WeightsError, ValueError, ModuleNotFoundError) as error:
        advice = "name a file of this network in backbone-weights, or start a run once where downloads are possible"
        return Finding("backbone", "FAIL", str(error), advice), None
    seconds = time.perf_counter() - started
    size = f"at {backbone.input_size} pixels" if backbone.kind == "image" else f"up to {backbone.input_size} tokens"
    message = (
        f"{backbone.name} {size}, {backbone.feature_dim} features ({backbone.features}), on {backbone.device}; "
        f"weights: {backbone.weights_source}, licence {backbone.licence.name}; fingerprint "
        f"{backbone.fingerprint[:16]}; loaded in {seconds:.1f} s"
    )
    if warnings := backbone.licence.warnings:
        return Finding("backbone", "warning", message, " ".join(warnings)), backbone
    return Finding("backbone", "ok", message), backbone


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Forbid downloads of weights and data for a while, as somebody without a network would."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
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
        return Finding(
            "data", "FAIL", str(error), "correct the data or the setting; docs/data.md says how data are read"
        ), None
    message = f"{dataset.name}: {description(dataset, test)}"
    doubtful = [*dataset.notes, *doubts(dataset, test)]
    if node is not None and test is not None:
        doubtful.append("the test split is not used: a node keeps some samples of its own for evaluation")
    if not doubtful:
        return Finding("data", "ok", message), dataset
    advice = "if the folders are not read as you meant, see docs/data.md"
    return Finding("data", "warning", f"{message}; {'; '.join(doubtful)}", advice), dataset


def check_kind(dataset: Dataset, backbone: Backbone) -> Iterator[Finding]:
    """Tell where the data are of another kind than the network takes."""
    if dataset.kind != backbone.kind:
        message = f"{backbone.name} takes {backbone.kind}s, the data are {dataset.kind}s"
        yield Finding("backbone and data", "FAIL", message, "name another backbone, or other data")


def some_of(dataset: Dataset) -> list[int]:
    """Return the indices of some samples, spread over all."""
    spread = np.linspace(0, len(dataset) - 1, min(SAMPLES_READ, len(dataset)))
    return [int(index) for index in np.unique(spread.astype(int))]


def check_samples(dataset: Dataset) -> Finding:
    """Read some of the samples, spread over all."""
    indices, what = some_of(dataset), f"{dataset.kind}s"
    unreadable: dict[str, str] = {}
    read: list[int] = []
    for _ in readable(dataset, indices, read, unreadable):
        pass
    if not unreadable:
        return Finding(what, "ok", f"{len(read)} of {len(dataset):,} read, all readable")
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
