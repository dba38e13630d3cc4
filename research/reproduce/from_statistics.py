"""Numbers of the papers that no run gives, computed from the statistics that a run has saved."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.client.site import Site
from fedstats_app.data.clients import partitions, test_split, training_set
from fedstats_app.heads import LinearHead, solve_fedcof
from fedstats_app.report.statistics_file import load_statistics
from fedstats_app.report.training_record import BYTES_PER_NUMBER
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import ClientStatistics, FeatureStatistics
from fedstats_app.statistics.collected import StatisticsSum
from research.baselines.fedcof_variants import draw_noise, solve_oracle, with_noise

Entry = dict[str, float]
NODE = NodeConfig("", 0, 1)


def from_statistics(config: AppConfig, name: str, options: Mapping[str, Any], folder: Path) -> Entry:
    """Return the numbers of a simulation, by the names that results.json has for them.

    Parameters
    ----------
    config : AppConfig
        Of the run.
    name : str
        One of :data:`SIMULATIONS`.
    options : mapping
        The simulation's.
    folder : Path
        The run folder.
    """
    return _FUNCTIONS[name](config, load_statistics(folder).total, **options)


def _oracle(config: AppConfig, total: StatisticsSum, covariance: Any) -> Entry:
    """Score FedCOF's oracle with FedCOF's gamma; in the paper each row is sent with its covariance."""
    statistics = ClientStatistics(total.rows(), total.summed().gram)
    head = solve_oracle(statistics, config.options_of("fedcof").shrinkage, covariance)
    dim = total.feature_dim
    numbers = {"full": dim + dim**2, "diagonal": 2 * dim, "spherical": dim + 1}[covariance]
    return {"accuracy": _accuracy(config, head), "uplink_bytes": BYTES_PER_NUMBER * total.num_pairs * numbers}


def _count_noise(config: AppConfig, total: StatisticsSum, noise: Any, epsilon: float) -> Entry:
    """Score FedCOF's head of counts with noise, which the run's seed draws."""
    rows, options = total.rows(), config.options_of("fedcof")
    drawn = draw_noise(noise, epsilon, rows.counts, torch.Generator().manual_seed(config.run.seed))
    head = solve_fedcof(with_noise(rows, drawn), shrinkage=options.shrinkage, between_class=options.between_class)
    return {"accuracy": _accuracy(config, head)}


def _statistics_error(config: AppConfig, total: StatisticsSum, quantity: str) -> Entry:
    """Compare merged statistics with those of all clients' samples in one place."""
    found = total.summed()
    true = FeatureStatistics.zeros(found.num_classes, found.feature_dim, gram=True)
    for features, labels in _client_features(config):
        true += FeatureStatistics.from_features(features, labels, found.num_classes, gram=True)
    return statistics_error(found, true)[quantity]


_FUNCTIONS: dict[str, Callable[..., Entry]] = {
    "oracle": _oracle,
    "count-noise": _count_noise,
    "statistics-error": _statistics_error,
}


def statistics_error(found: FeatureStatistics, true: FeatureStatistics) -> dict[str, Entry]:
    """Return the errors of the class means and of the covariance about the mean of all (Guan et al. 2025).

    Returns
    -------
    dict
        By quantity, "class_means" and "covariance": "norm", the Frobenius norm of the difference, and "relative", that
        over the norm of the true one (of zeros, the difference's own).
    """
    pairs = {
        "class_means": (found.class_means, true.class_means),
        "covariance": (_covariance(found), _covariance(true)),
    }
    errors = {}
    for name, (ours, theirs) in pairs.items():
        norm = float((ours - theirs).norm())
        errors[name] = {"norm": norm, "relative": norm / (float(theirs.norm()) or 1.0)}
    return errors


def _covariance(statistics: FeatureStatistics) -> Tensor:
    """Return (G - N mu mu^T) / (N - 1), (d, d)."""
    if statistics.gram is None:
        raise ValueError("the covariance needs statistics with a Gram matrix")
    mean, number = statistics.mean, statistics.num_examples
    return (statistics.gram - number * torch.outer(mean, mean)) / max(number - 1, 1)


def participation(config: AppConfig, fraction: float) -> dict[str, Entry]:
    """Return each head's accuracy after every round that asks a share of the clients, drawn without replacement."""
    methods, seed, num_classes = config.configured_methods, config.run.seed, len(training_set(config.data).class_names)
    totals: dict[str, StatisticsSum] = {}
    found: dict[str, Entry] = {}
    left = [*range(len(partitions(config.data, config.partition, seed)))]
    size = math.ceil(fraction * len(left))
    for number in range(1, math.ceil(1 / fraction) + 1):
        drawn = np.random.default_rng([seed, number]).choice(left, min(size, len(left)), replace=False).tolist()
        left = [client for client in left if client not in drawn]
        for client in sorted(drawn):
            if not (blocks := [*_features_of(config, client)]):
                continue
            features, labels = (torch.cat(parts) for parts in zip(*blocks, strict=True))
            for name, method in methods.items():
                spec = method.specification
                sent = spec.from_features(features, labels, num_classes, seed=seed)
                kinds = {"gram": spec.gram, "keep_rows": method.keeps_rows, "scatter": spec.scatter is not None}
                totals.setdefault(name, StatisticsSum(num_classes, features.shape[1], **kinds)).add(sent)
        found[str(number)] = {name: _accuracy(config, methods[name].head(total)) for name, total in totals.items()}
    return found


def _accuracy(config: AppConfig, head: LinearHead) -> float:
    features, labels = _test_features(config)
    return float((head.predict(features) == labels).double().mean())


@functools.lru_cache(maxsize=1)
def _read_test(config: AppConfig) -> tuple[Tensor, Tensor]:
    dataset = test_split(config.data.test_dataset or config.data.dataset, config.data)
    if dataset is None:
        raise ValueError(f"dataset {config.data.dataset!r} must have a test split, got none")
    dataset = dataset.with_class_names(training_set(config.data).class_names)
    backbone = loaded_backbone(config.backbone_for(own_data=False), NODE.engine_root(config.cache))
    reader = FeatureReader(backbone, NODE.cache_root(config.cache))
    found = [(block.cpu(), positions) for block, positions in reader.blocks(dataset, np.arange(len(dataset)))]
    labels = torch.from_numpy(np.array(dataset.labels))
    return torch.cat([block for block, _ in found]), labels[torch.cat([positions for _, positions in found])]


def _test_features(config: AppConfig) -> tuple[Tensor, Tensor]:
    """Return (n, d) features and (n,) labels of the test set, read once for cells that differ in nothing of it."""
    return _read_test(AppConfig(data=config.data, backbone=config.backbone, cache=config.cache))


def _client_features(config: AppConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features (b, d) and labels (b,) of all samples that clients have, mirror images among them."""
    for client in range(len(partitions(config.data, config.partition, config.run.seed))):
        yield from _features_of(config, client)


def _features_of(config: AppConfig, client: int) -> Iterator[tuple[Tensor, Tensor]]:
    site = Site(config, NODE, client)
    split = site.split((), holdout=0.0, seed=config.run.seed)
    labels = torch.from_numpy(np.array(split.dataset.labels[split.kept]))
    for features, positions in site.reader("").blocks(split.dataset, split.kept):
        yield features.cpu(), labels[positions]
