"""What probes make of their starts: found as a run finds it, and told as the lines say."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedstats_app.heads import solve_ncm
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training import LocalOptions
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.start_heads import random_head
from research.benchmarks import probe_start
from research.benchmarks.features import Features
from research.benchmarks.probe_start import Probe, averaged, data_of, made_features, measure, table


def few(data: Features) -> Features:
    return Features(data.train[:1500], data.train_labels[:1500], data.test, data.test_labels, data.num_classes)


def test_a_run_has_a_line_for_each_head(measured: Callable[..., list[Probe]]) -> None:
    found = measured(probe_start, Probe, "made=0", "--clients", "4", "--seeds", "1", "--rounds", "1")
    assert [one.head for one in found] == ["random", "FedNCM", "Fed3R", "FedCOF"]


def test_heads_learn_and_what_is_kept_is_the_start_or_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_start, "made_features", lambda seed: few(made_features(seed)))
    data, dataset = data_of("made=0")
    lines = list(measure("made=0", data, dataset, [4, 20], 2, 5))
    assert [(one.num_clients, one.head) for one in lines] == [
        (clients, head) for clients in (4, 20) for head in ("random", "FedNCM", "Fed3R", "FedCOF")
    ]
    for one in lines:
        for start, last, kept in zip(one.start, one.last, one.kept, strict=True):
            assert kept in (start, last)
    assert np.mean(lines[0].last) > np.mean(lines[0].start) + 10
    head = solve_ncm(FeatureStatistics.from_features(data.train, data.train_labels, 10))
    right = 100 * data.accuracy(head)
    assert all(one.start == pytest.approx((right, right)) for one in lines if one.head == "FedNCM")
    assert lines[1].rate < lines[0].rate <= 1.0 and lines[0].temperature == 1.0


def test_heads_that_are_trained_together_are_as_if_trained_alone() -> None:
    data = few(made_features(0))
    parts = [TensorSamples(data.train[part], data.train_labels[part]) for part in (slice(0, 50), slice(50, 150))]
    heads = [random_head(10, 64, seed=seed) for seed in (0, 1)]
    for head, found, rate in zip(heads, averaged(heads, parts, [0.001, 0.01], 1, 5), (0.001, 0.01), strict=True):
        weight = torch.zeros(10, 64)
        for client, part in enumerate(parts):
            model = TunedModel((head.weight.float(), head.bias.float()), tune="probe")
            train_locally(model, part, LocalOptions(learning_rate=rate), key=(5, client, 0))
            weight += len(part.labels) / 150 * model.head.weight.detach()
        torch.testing.assert_close(found.weight.float(), weight, rtol=1e-4, atol=1e-5)


def test_a_loss_that_did_not_fall_keeps_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the largest rate whatever was solved is lost."""
    monkeypatch.setattr(probe_start, "probe_rate", lambda *_, **__: 1.0)
    monkeypatch.setattr(probe_start, "made_features", lambda seed: few(made_features(seed)))
    data, dataset = data_of("made=0")
    found = {one.head: one for one in measure("made=0", data, dataset, [20], 1, 1)}
    assert found["Fed3R"].kept == found["Fed3R"].start > found["Fed3R"].last
    assert found["random"].kept == found["random"].last


def test_the_table_has_means_and_the_interval_of_the_gain() -> None:
    kept = (81.0, 82.0, 83.0)
    one = Probe("x", 10, 20, "Fed3R", (80.0,) * 3, (70.0,) * 3, kept, kept, 0.5, 0.01)
    # Student's 97.5% quantile with two degrees of freedom is 4.3027.
    assert table([one]).splitlines()[-1] == (
        "| x, 10, 20 | Fed3R | 80.00 | 70.00 | 82.00 | 82.00 | +2.00 ± 2.48 | 0.5, 0.01 |"
    )


def test_made_features_are_rectified_and_far_from_zero() -> None:
    data = made_features(1)
    assert bool((data.train >= 0).all()) and data.train.shape == (6000, 64) and data.test.shape == (2000, 64)
    within = data.train[data.train_labels == 0]
    assert float(within.mean(dim=0).norm()) > 2 * float((within - within.mean(dim=0)).pow(2).mean().sqrt())
    assert not torch.equal(data.train, made_features(2).train)
