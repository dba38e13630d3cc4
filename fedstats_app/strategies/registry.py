"""The methods by name, each made from the run's configuration: one line per method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedstats_app.config import AppConfig
from fedstats_app.statistics import FeatureMap, IdentityMap, RandomFourierFeatures, RandomProjection
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.strategies.fed3r import Fed3R
from fedstats_app.strategies.fedcgs import FedCGS
from fedstats_app.strategies.fedcof import FedCOF
from fedstats_app.strategies.fedncm import FedNCM
from fedstats_app.strategies.one_pass import OnePass

# From a method's name to what makes its strategy from the configuration and the number of classes.
METHODS: dict[str, Callable[[AppConfig, int], StatisticsStrategy]] = {
    "fedncm": lambda config, num_classes: FedNCM(num_classes),
    "fed3r": lambda config, num_classes: Fed3R(
        num_classes,
        ridge_lambda=config.method_keys.ridge_lambda,
        between_class=config.method_keys.fed3r_between_class,
        fit_bias=config.method_keys.fed3r_bias,
        solver=config.method_keys.fed3r_solver,
        feature_map=_fourier_map(config),
    ),
    "fedcof": lambda config, num_classes: FedCOF(
        num_classes,
        shrinkage=config.method_keys.fedcof_shrinkage,
        between_class=config.method_keys.fedcof_between_class,
        means_per_class=config.method_keys.fedcof_means_per_class,
    ),
    "fedcgs": lambda config, num_classes: FedCGS(
        num_classes,
        covariance=config.method_keys.fedcgs_covariance,
        shrinkage=config.method_keys.fedcgs_shrinkage,
        feature_map=_expansion_map(config),
    ),
}


def make_strategy(config: AppConfig, num_classes: int, **options: Any) -> StatisticsStrategy:
    """Return one strategy that serves all methods of a run from one pass.

    Parameters
    ----------
    config : AppConfig
        With a kernel width in numbers if there are random Fourier features.
    num_classes : int
        C.
    **options
        As :class:`StatisticsStrategy`.
    """
    return OnePass(num_classes, [METHODS[name](config, num_classes) for name in config.methods], **options)


def _fourier_map(config: AppConfig) -> FeatureMap:
    if config.method_keys.fed3r_random_features == 0:
        return IdentityMap()
    if config.method_keys.fed3r_kernel_width == "auto":
        raise ValueError("fed3r-kernel-width must be a number here, got auto")
    return RandomFourierFeatures(
        config.method_keys.fed3r_random_features, config.method_keys.fed3r_kernel_width, config.run.seed
    )


def _expansion_map(config: AppConfig) -> FeatureMap:
    if config.method_keys.fedcgs_random_features == 0:
        return IdentityMap()
    return RandomProjection(
        config.method_keys.fedcgs_random_features, config.run.seed, config.method_keys.fedcgs_activation
    )
