"""In a simulation: how far what the server added up lies from the statistics of all clients' samples in one place."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.data.clients import partitions, split_holdout, training_set
from fedstats_app.data.subset import flipped, with_mirror_images
from fedstats_app.server.run import Run
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.error import statistics_error
from fedstats_app.strategies import StatisticsStrategy


def measured_error(run: Run, strategy: StatisticsStrategy, clients: Iterable[int]) -> dict[str, dict[str, float]]:
    """Return the error of the class means and, with Gram matrices, of the covariance.

    The samples are all that the clients have for statistics: what floors held back or could not be read is an error.
    Their features come from the cache where that is on, else the backbone runs over them once more, here.

    Parameters
    ----------
    run : Run
        Of a simulation.
    strategy : StatisticsStrategy
        Finished.
    clients : iterable of int
        Those that are in the heads.
    """
    config, dataset = run.config, training_set(run.config.data)
    parts = partitions(config.data, config.partition, config.run.seed)
    kept = [split_holdout(parts[client], run.holdout, config.run.seed, client)[0] for client in sorted(clients)]
    indices = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *kept]))
    if (flips := config.partition.training_flips) != "none":
        indices, dataset = flipped(indices, len(dataset), flips, config.run.seed), with_mirror_images(dataset)
    labels, spec = torch.from_numpy(np.array(dataset.labels[indices])), strategy.request.specs[0]
    found = strategy.collection.statistics(0).summed()
    reader = FeatureReader(run.backbone, NodeConfig().cache_root(config.cache))
    gram = found.gram is not None
    true = FeatureStatistics.zeros(found.num_classes, found.feature_dim, gram=gram)
    for features, positions in reader.blocks(dataset, indices):
        mapped = spec.feature_map(features).cpu()
        true = true + FeatureStatistics.from_features(mapped, labels[positions], found.num_classes, gram=gram)
    return statistics_error(found, true)
