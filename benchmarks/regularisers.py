"""Automatic regularisers against fixed ones: accuracy on the server's test set.

    python -m benchmarks.regularisers dataset=builtin num-clients=100

Takes run-config keys as ``key=value``. Statistics are formed here, without Flower; features come from the feature cache
where an earlier run left them.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.loading import loaded_backbone
from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.data.clients import partitions, test_split, training_set
from fedstats_app.heads import LinearHead, solve_fedcof, solve_gaussian, solve_ridge
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics

RIDGE = (0.01, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
FEDCOF = (0.01, 0.1, 1.0, 10.0)
FEDCGS = (0.0, 0.001, 0.01, 0.1)


def measure(config: AppConfig) -> dict[str, dict[str, float]]:
    """Return accuracies in per cent, by method and regulariser."""
    reader = FeatureReader(
        loaded_backbone(config.backbone_for(own_data=False)), NodeConfig("", 0, 1).cache_root(config.cache)
    )
    train = training_set(config.data)
    test = test_split(config.data.dataset, config.data)
    if test is None:
        raise ValueError(f"dataset {config.data.dataset!r} must have a test split, got none")
    features, test_features = (
        torch.cat([block for block, _ in reader.blocks(split, np.arange(len(split)))]) for split in (train, test)
    )
    labels, test_labels = (torch.from_numpy(np.array(split.labels)) for split in (train, test))
    num_classes = len(train.class_names)
    stats = FeatureStatistics.from_features(features, labels, num_classes)
    rows = ClassMeanRows.concatenate(
        _client_rows(features, labels, part, num_classes, config.options_of("fedcof").means_per_class)
        for part in partitions(config.data, config.partition, config.run.seed)
    )

    def accuracy(head: LinearHead) -> float:
        return round(100 * float((head.predict(test_features) == test_labels).double().mean()), 2)

    ridge, fedcof = solve_ridge(stats, ridge_lambda="auto"), solve_fedcof(rows, shrinkage="auto")
    within = solve_ridge(stats, ridge_lambda="auto", between_class=False)
    return {
        "fed3r": {
            ridge.report.regulariser: accuracy(ridge),
            **{f"{value:g}": accuracy(solve_ridge(stats, ridge_lambda=value)) for value in RIDGE},
        },
        "fed3r without between-class scatter": {
            within.report.regulariser: accuracy(within),
            **{f"{value:g}": accuracy(solve_ridge(stats, ridge_lambda=value, between_class=False)) for value in RIDGE},
        },
        "fedcof": {
            fedcof.report.regulariser: accuracy(fedcof),
            **{f"{value:g}": accuracy(solve_fedcof(rows, shrinkage=value)) for value in FEDCOF},
        },
        **{
            f"fedcgs ({covariance})": {
                f"{value:g}": accuracy(solve_gaussian(stats, covariance=covariance, shrinkage=value))
                for value in FEDCGS
            }
            for covariance in ("total", "within")
        },
    }


def _client_rows(
    features: Tensor, labels: Tensor, part: np.ndarray, num_classes: int, means_per_class: int
) -> ClassMeanRows:
    index = torch.from_numpy(part)
    return ClassMeanRows.from_features(features[index], labels[index], num_classes, means_per_class=means_per_class)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="run-config keys")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    run_config = {key: _value(value) for key, _, value in (setting.partition("=") for setting in arguments.settings)}
    results = measure(AppConfig.from_run_config(run_config))
    if arguments.json:
        print(json.dumps(results))
        return
    for method, accuracies in results.items():
        print(f"{method}: " + ", ".join(f"{name}: {value:.2f}" for name, value in accuracies.items()))


def _value(text: str) -> object:
    """Read a value as TOML would: numbers and truth values as such, the rest as text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


if __name__ == "__main__":
    main()
