"""Means of so many samples each: what a client sends, what a node's floor does to it, and how it travels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.methods.fedcof import FEDCOF, FedCOFOptions
from fedstats_app.privacy import NodePolicy, statistics_above_floor
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError
from fedstats_app.statistics import ClassMeanRows, StatisticsSpec, merge_specs
from tests.support.simulation import read_json, simulate


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 40), st.integers(2, 17), st.integers(0, 9))
def test_a_class_has_a_mean_for_each_so_many_samples(labels: list[int], means: int, samples: int, floor: int) -> None:
    features = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    spec = StatisticsSpec(means_per_class=means, samples_per_mean=samples)
    found = statistics_above_floor(
        NodePolicy(floor),
        [spec],
        torch.tensor(labels, dtype=torch.int64),
        lambda positions: [(features[positions], torch.arange(len(positions)))],
        num_classes=4,
        feature_dim=3,
    )
    rows = found.statistics[0].rows
    numbers = np.bincount(labels, minlength=4)
    for label, number in enumerate(numbers.tolist()):
        own = rows.counts[rows.class_ids == label]
        if number < max(floor, 1):
            assert not len(own)
            continue
        assert len(own) == max(1, min(means, number // max(samples, floor)))
        assert int(own.sum()) == number and (len(own) == 1 or int(own.min()) >= max(samples, floor))


def test_it_travels_only_where_it_says_something() -> None:
    assert "samples-per-mean" not in StatisticsSpec(means_per_class=3).to_dict()
    spec = StatisticsSpec(means_per_class=3, samples_per_mean=8)
    assert StatisticsSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    for wrong in (1, 0, -3):
        with pytest.raises(ValueError, match="samples_per_mean must be at least 2"):
            StatisticsSpec.from_dict({**spec.to_dict(), "samples-per-mean": wrong})
    for wrong_type in (True, "8", 8.0, None):
        with pytest.raises(TypeError, match="samples-per-mean must be of type int"):
            StatisticsSpec.from_dict({**spec.to_dict(), "samples-per-mean": wrong_type})


def test_one_pass_serves_one_number_of_samples() -> None:
    few, many = (StatisticsSpec(means_per_class=3, samples_per_mean=number) for number in (2, 8))
    with pytest.raises(ValueError, match=r"one pass serves one number of samples per mean, got \[2, 8\]"):
        merge_specs([few, many])
    (merged,) = merge_specs([StatisticsSpec(gram=True), many])
    assert merged == StatisticsSpec(gram=True, means_per_class=3, samples_per_mean=8)
    assert merged.covers(many) and merged.covers(StatisticsSpec(gram=True)) and not merged.covers(few)


def test_a_run_asks_for_them(tmp_path: Path) -> None:
    sent = []
    for number in (2, 16):
        method = f"fedcof@means-per-class=50@samples-per-mean={number}"
        folder = simulate(tmp_path / str(number), method=method)
        sent.append(read_json(folder, "results.json")["methods"][method]["wire_bytes"])
    assert sent[1] < 0.7 * sent[0]
    assert FEDCOF.configured(FedCOFOptions.of(samples_per_mean=9)).specification == StatisticsSpec()
    with pytest.raises(ConfigError, match="oracle@covariance: must be full where a method asks for several means"):
        AppConfig.of(method="oracle@covariance=diagonal,fedcof", fedcof_means_per_class=2)


def test_rows_of_one_client_are_those_of_the_plain_rule_at_two() -> None:
    features, labels = torch.randn(50, 4), torch.arange(50) % 3
    plain = ClassMeanRows.from_features(features, labels, 3, means_per_class=4)
    rows = StatisticsSpec(means_per_class=4).from_features(features, labels, 3).rows
    assert torch.equal(rows.class_sums, plain.class_sums) and torch.equal(rows.counts, plain.counts)
