"""Features of a data set's training and test samples, for benchmarks that need no Flower."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.option import flattened
from fedstats_app.data import Dataset
from fedstats_app.data.clients import test_split, training_set
from fedstats_app.heads import LinearHead
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig


@dataclass(frozen=True, eq=False)
class Features:
    """A data set as the frozen backbone sees it.

    Attributes
    ----------
    train, test : Tensor
        (n, d) float32.
    train_labels, test_labels : Tensor
        (n,) int64.
    num_classes : int
        C.
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    num_classes: int

    def accuracy(self, head: LinearHead) -> float:
        """Return the share of the test samples that a head predicts correctly."""
        return float((head.predict(self.test) == self.test_labels).double().mean())


def config_of(experiment: str, **changes: object) -> AppConfig:
    """Return the configuration of an experiment, as :func:`settings_of` reads it, with some keys changed."""
    return AppConfig.from_run_config(
        {**settings_of(experiment), **{key.replace("_", "-"): value for key, value in flattened(changes).items()}}
    )


def features_of(config: AppConfig) -> Features:
    """Return the features of a run's data, from the feature cache where an earlier run left them.

    Raises
    ------
    ValueError
        If there is no test split, or a sample cannot be read.
    """
    node = NodeConfig("", 0, 1)
    backbone = loaded_backbone(config.backbone_for(own_data=False), node.engine_root(config.cache))
    reader = FeatureReader(backbone, node.cache_root(config.cache))
    train = training_set(config.data)
    test = test_split(config.data.dataset, config.data)
    if test is None:
        raise ValueError(f"dataset {config.data.dataset!r} must have a test split, got none")
    return Features(*_read(reader, train), *_read(reader, test), len(train.class_names))


def _read(reader: FeatureReader, split: Dataset) -> tuple[Tensor, Tensor]:
    features = torch.cat([block.cpu() for block, _ in reader.blocks(split, np.arange(len(split)))])
    if len(features) < len(split):
        raise ValueError(f"all samples must be readable, got {len(split) - len(features)} that are not")
    return features, torch.from_numpy(np.array(split.labels))


def settings_of(experiment: str) -> dict[str, object]:
    """Return the run-config keys of a TOML file, or of ``key=value`` pairs: values as TOML has them, or else text.

    Raises
    ------
    ValueError
        If a pair has no equals sign.
    """
    if experiment.endswith(".toml") and "=" not in experiment:
        return tomllib.loads(Path(experiment).read_text(encoding="utf-8"))
    settings: dict[str, object] = {}
    for pair in experiment.split():
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"settings must be key=value, got {pair!r}")
        try:
            settings[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            settings[key] = text
    return settings
