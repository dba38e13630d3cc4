import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedstats_app.data.clients import partitions, training_set
from fedstats_app.heads import solve_ncm
from fedstats_app.report.advice import Candidate, advise
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
from research.benchmarks import advice as benchmark
from research.benchmarks.advice import Measurement
from research.benchmarks.features import Features, settings_of

DIM = 6


@pytest.fixture
def data() -> Features:
    """Return features around one centre per class, for the labels of the built-in sample."""
    labels = torch.from_numpy(np.array(training_set(AppConfig().data).labels))
    random = torch.Generator().manual_seed(0)
    centres = torch.rand(10, DIM, generator=random)
    features = centres[labels] + 0.3 * torch.rand(len(labels), DIM, generator=random)
    return Features(features, labels, features[:500], labels[:500], 10)


def test_accuracy_and_bytes_are_those_of_replies(data: Features) -> None:
    config = AppConfig.of(num_clients=7)
    parts = partitions(config.data, config.partition, 0)
    found = {one.method: one for one in benchmark.candidates_of(data, parts, config)}
    assert set(found) == set(config.methods)
    head = solve_ncm(FeatureStatistics.from_features(data.train, data.train_labels, 10))
    assert found["fedncm"].accuracy == pytest.approx(data.accuracy(head), abs=0.003)
    rows = sum(len(torch.unique(data.train_labels[torch.from_numpy(part)])) for part in parts)
    # Of a row id, count, sums and scale; of a client four arrays' headers, three numbers and the fingerprint.
    assert found["fedncm"].wire_bytes == rows * (8 + 8 + 2 * DIM + 4) + 7 * (4 * 128 + 3 * 8 + 64)
    assert found["fedncm"].wire_bytes == found["fedcof"].wire_bytes < found["fed3r"].wire_bytes


def test_another_choice_is_noticed() -> None:
    candidates = [Candidate("fedncm", 0.7, 10), Candidate("fedcof", 0.84, 20), Candidate("fed3r", 0.85, 30)]
    advice = advise(candidates, 2000)
    assert advice is not None and advice.choice == candidates[1]
    assert benchmark.is_cheapest_within(advice, candidates)
    for wrong in (candidates[0], candidates[2]):
        step = dataclasses.replace(advice.steps[-1], choice=wrong)
        assert not benchmark.is_cheapest_within(dataclasses.replace(advice, steps=(step,)), candidates)


def test_every_run_is_told_of(
    data: Features, measured: Callable[..., list[Measurement]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "features_of", lambda config: data)
    settings = "method=fedncm,fedcof wire-dtype=float64"
    runs = measured(benchmark, Measurement, settings, "--clients", "3", "5", "--seeds", "2")
    assert [(one.num_clients, one.seed) for one in runs] == [(3, 0), (3, 1), (5, 0), (5, 1)]
    assert all(one.cheapest_within and one.num_test == 500 for one in runs)
    assert {one["method"] for one in runs[0].candidates} == {"fedncm", "fedcof"}
    with pytest.raises(ValueError, match="must be at least two methods, got fedncm"):
        benchmark.main(["method=fedncm"])


def test_settings_are_pairs() -> None:
    assert settings_of('a=1 b=true c=x:/y d="7"') == {"a": 1, "b": True, "c": "x:/y", "d": "7"}
    with pytest.raises(ValueError, match="settings must be key=value, got 'seed'"):
        settings_of("seed")
