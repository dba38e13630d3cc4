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

from benchmarks.features import Features, features_of, run_config
from fedstats_app.config import AppConfig
from fedstats_app.data.clients import partitions
from fedstats_app.heads import LinearHead, solve_fedcof, solve_gaussian, solve_ridge
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics

RIDGE = (0.01, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
FEDCOF = (0.01, 0.1, 1.0, 10.0)
FEDCGS = (0.0, 0.001, 0.01, 0.1)


def measure(config: AppConfig) -> dict[str, dict[str, float]]:
    """Return accuracies in per cent, by method and regulariser."""
    data = features_of(config)
    stats = FeatureStatistics.from_features(data.train, data.train_labels, data.num_classes)
    rows = ClassMeanRows.concatenate(
        _client_rows(data, part, config.options_of("fedcof").means_per_class)
        for part in partitions(config.data, config.partition, config.run.seed)
    )

    def accuracy(head: LinearHead) -> float:
        return round(100 * float((head.predict(data.test) == data.test_labels).double().mean()), 2)

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


def _client_rows(data: Features, part: np.ndarray, means_per_class: int) -> ClassMeanRows:
    index = torch.from_numpy(part)
    return ClassMeanRows.from_features(
        data.train[index], data.train_labels[index], data.num_classes, means_per_class=means_per_class
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="run-config keys")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = measure(AppConfig.from_run_config(run_config(arguments.settings)))
    if arguments.json:
        print(json.dumps(results))
        return
    for method, accuracies in results.items():
        print(f"{method}: " + ", ".join(f"{name}: {value:.2f}" for name, value in accuracies.items()))


if __name__ == "__main__":
    main()
