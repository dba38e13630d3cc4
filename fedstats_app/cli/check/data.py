"""The checks of `fedstats check` on data, loaded as a run loads them, and with `--data` of the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from fedstats_app.base.progress import Step
from fedstats_app.cli.terminal import Finding, printable
from fedstats_app.data import Dataset, UnreadableSampleError
from fedstats_app.data.clients import hidden_classes, own_dataset, partitions, test_split, training_set
from fedstats_app.data.description import check_classes, clients_in_words, description, doubts, listed
from fedstats_app.data.persons import persons_per_class
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

# Spread over all of them: damaged files often come together.
FEW_SAMPLES, MANY_SAMPLES = 50, 200

Made = TypeVar("Made")
# What is missing for a data set of the hub shows as a failed connection or a missing library.
FAILURES = (ValueError, OSError, ImportError)


def check_network(config: AppConfig, node: NodeConfig | None, step: Step) -> Iterator[Finding]:
    """Check the network that a run loads, on a node with data of its own or in a simulation."""
    from fedstats_app.backbones.registry import loaded_backbone  # with torch
    from fedstats_app.backbones.weights import WeightsError

    own = node or NodeConfig()
    options = config.backbone_for(own_data=node is not None, weights=own.backbone_weights)
    step.at(0, f"loading backbone {options.backbone}")
    started = time.perf_counter()
    try:
        backbone = loaded_backbone(options)
    except (WeightsError, *FAILURES) as error:
        advice = "name a file of this network in backbone-weights, or start a run once where downloads are possible"
        yield Finding("backbone", "FAIL", str(error), advice)
    else:
        size = f"{backbone.sizes} {'pixels' if backbone.kind == 'image' else 'tokens'}"
        message = (
            f"{backbone.name}, {size}, {backbone.feature_dim} features ({backbone.features}), on {backbone.device}; "
            f"weights: {backbone.weights_source}, licence {backbone.licence}; fingerprint "
            f"{backbone.fingerprint[:16]}; loaded in {time.perf_counter() - started:.1f} s"
        )
        yield Finding("backbone", "ok", message)


def check_data(config: AppConfig, node: NodeConfig | None, step: Step, num_read: int) -> Iterator[Finding]:
    """Check the samples that a run loads, on a node with data of its own or in a simulation."""
    step.at(0, "reading the list of samples")
    found, failure = _tried(lambda: _datasets(config, node))
    if found is None:
        yield Finding("data", "FAIL", failure, "correct the data or the setting; docs/data.md says how data are read")
    else:
        dataset, test = found
        doubtful = [*dataset.notes, *doubts(dataset, test, config.partition.partition_column)]
        message = "; ".join([f"{dataset.name}: {description(dataset, test)}", *doubtful])
        advice = "if the folders are not read as you meant, see docs/data.md" if doubtful else ""
        yield Finding("data", "warning" if doubtful else "ok", message, advice)
        step.at(0, f"reading some of {len(dataset):,} {dataset.kind}s")
        yield check_samples(dataset, num_read)
        if (dataset.kind == "text") != config.backbone.takes_text:
            message = f"{config.backbone.backbone} does not take {dataset.kind}s, which the data are"
            yield Finding("backbone and data", "FAIL", message, "name another backbone, or other data")
        if node is not None:
            yield check_class_counts(dataset, config, node)
        else:
            parts, failure = _tried(lambda: partitions(config.data, config.partition, config.run.seed))
            if parts is None:
                yield Finding("partitions", "FAIL", failure, "change num-clients or the partitioner")
            else:
                yield Finding("partitions", "ok", clients_in_words(parts, dataset, by_size=config.partition.by_size))


def _tried(load: Callable[[], Made]) -> tuple[Made | None, str]:
    """Return what was loaded, or None and the reason that it could not be."""
    try:
        return load(), ""
    except FAILURES as error:
        return None, str(error)


def _datasets(config: AppConfig, node: NodeConfig | None) -> tuple[Dataset, Dataset | None]:
    """Return training and test data."""
    if node is not None:
        options = node.data_options(config.data)
        return own_dataset(node.data_path, options), None
    dataset = training_set(config.data)
    check_classes(dataset)
    return dataset, test_split(config.data.test_dataset or config.data.dataset, config.data)


def check_samples(dataset: Dataset, num_read: int) -> Finding:
    """Read some of the samples, spread over all."""
    spread = np.linspace(0, len(dataset) - 1, min(num_read, len(dataset)))
    indices, kind = np.unique(spread.astype(int)).tolist(), f"{dataset.kind}s"
    unreadable: dict[str, str] = {}
    for index in indices:
        try:
            dataset.sample(index)
        except UnreadableSampleError as error:
            unreadable[error.name] = error.reason
    read = len(indices) - len(unreadable)
    if not unreadable:
        return Finding(kind, "ok", f"{read} of {len(dataset):,} read, all readable")
    named = "; ".join(f"{printable(name)}: {printable(reason, 200)}" for name, reason in list(unreadable.items())[:3])
    message = f"{len(unreadable)} of {len(indices)} that were tried cannot be read, such as {named}"
    if not read:
        return Finding(kind, "FAIL", message, f"are these {kind}, and may this user read them?")
    return Finding(kind, "warning", message, f"a run leaves such {kind} out and counts them; repair or remove them")


def check_class_counts(dataset: Dataset, config: AppConfig, node: NodeConfig) -> Finding:
    """List the classes with too few samples to leave a node."""
    floor, counts = node.class_floor(config.federation.min_class_count), persons_per_class(dataset)
    kind = f"{dataset.kind}s" if dataset.persons is None else "persons"
    few = [f"{dataset.class_names[label]} ({counts[label]})" for label in hidden_classes(dataset, floor)]
    if not few:
        message = f"{counts.min()} to {counts.max()} {kind} per class; {floor} must be there to leave"
        return Finding("class counts", "ok", message)
    message = f"{len(few)} of {len(counts)} classes have fewer than {floor} {kind} and do not leave this node: "
    advice = f"add {kind}, or set min-class-count in the node-config"
    return Finding("class counts", "warning", message + listed(few), advice)
