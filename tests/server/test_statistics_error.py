"""What was added up against the statistics of all samples in one place: numpy as the oracle, and real runs."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

from fedstats_app.base.option import ConfigError
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.feature_statistics import statistics_error
from tests.support.draws import Sample, samples
from tests.support.simulation import read_json, simulate, site_folder


def of(features: np.ndarray, labels: np.ndarray) -> FeatureStatistics:
    return FeatureStatistics.from_features(torch.from_numpy(features), torch.from_numpy(labels), 3)


def test_errors_are_those_that_numpy_finds() -> None:
    rng = np.random.default_rng(0)
    (one, labels), (other, others) = ((rng.normal(size=(n, 4)), rng.permutation(n) % 3) for n in (30, 40))
    found = statistics_error(of(one, labels), of(other, others))
    means = [np.stack([x[y == c].mean(axis=0) for c in range(3)]) for x, y in ((one, labels), (other, others))]
    covariances = [np.cov(x, rowvar=False) for x in (one, other)]
    for name, (mine, true) in {"class_means": means, "covariance": covariances}.items():
        assert found[name]["norm"] == pytest.approx(np.linalg.norm(mine - true), rel=1e-9)
        assert found[name]["relative"] == pytest.approx(np.linalg.norm(mine - true) / np.linalg.norm(true), rel=1e-9)


@given(samples(kinds=("random", "non-negative", "duplicates", "low rank")))
def test_a_split_costs_rounding_and_the_same_nothing(sample: Sample) -> None:
    parts = [FeatureStatistics.from_features(*part, sample.num_classes) for part in sample.parts]
    whole = FeatureStatistics.from_features(sample.features, sample.labels, sample.num_classes)
    assert {one["norm"] for one in statistics_error(whole, whole).values()} == {0.0}
    errors = statistics_error(reduce(add, parts), whole)
    assert errors["class_means"]["relative"] <= 1e-12
    # A difference of products, of features that may be nearly alike.
    assert errors["covariance"]["norm"] <= 1e-11 * sample.features.shape[1] * sample.scale**2 * max(
        len(sample.labels), 1
    )


def test_a_run_tells_it(tmp_path: Path) -> None:
    def error(folder: str, **settings: object) -> dict[str, dict[str, float]]:
        run = simulate(tmp_path / folder, statistics_error=True, **settings)
        found: dict[str, dict[str, float]] = read_json(run, "results.json")["statistics_error"]
        return found

    exact = error("a", method="fedcgs", wire_dtype="float64", keep="best", fine_tune="none")
    assert max(exact["class_means"]["relative"], exact["covariance"]["relative"]) <= 1e-12
    half = error("h", method="fedcgs")
    assert 1e-6 < half["class_means"]["relative"] <= 1e-3 and half["covariance"]["relative"] <= 1e-2
    assert set(error("c", method="fedncm")) == {"class_means"}
    floored = error("d", method="fedncm", min_class_count=40, num_clients=30)
    assert floored["class_means"]["relative"] > 1e-3
    without = simulate(tmp_path / "e", method="fedncm")
    assert read_json(without, "results.json")["statistics_error"] is None


def test_it_needs_a_simulation_of_all_clients(tmp_path: Path) -> None:
    nodes = [{"data-path": site_folder(tmp_path / name, ("ant", "bee"), seed=1, images=12)} for name in "ab"]
    with pytest.raises(ValueError, match="statistics-error: compares with all samples in one place"):
        simulate(tmp_path / "run", node_configs=nodes, method="fedncm", statistics_error=True)
    with pytest.raises(ConfigError, match="statistics-error: the samples behind statistics to extend"):
        AppConfig.of(statistics_error=True, extend="/a/run")
