"""The trainings of the benchmark learn, its attacks do harm without limits, and its table says what its rows say."""

from __future__ import annotations

import pytest
import torch

from research.benchmarks import attacks_training
from research.benchmarks.attacks_training import Federation
from research.benchmarks.features import Features


@pytest.fixture(scope="module")
def one() -> Federation:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(3, 12, generator=generator)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % 3
        return means[labels] + torch.randn(count, 12, generator=generator) * torch.linspace(0.2, 2, 12), labels

    data = Features(*draw(120), *draw(300), 3)
    parts = list(torch.randperm(120, generator=generator).split(12))
    return Federation(data, torch.arange(120), [*parts, torch.empty(0, dtype=torch.int64)])


@pytest.mark.parametrize("name", attacks_training.TRAININGS)
def test_limits_change_nothing_without_a_hostile_client_and_keep_it_out(one: Federation, name: str) -> None:
    training, _ = attacks_training.TRAININGS[name]
    clean = {limits: training(one, 1.0, limits, 10, 0) for limits in ("off", "default")}
    assert abs(clean["off"].accuracy - clean["default"].accuracy) < 3
    assert min(one.accuracy for one in clean.values()) >= clean["off"].start - 5
    assert clean["default"].honest_left_out == 0 < clean["default"].largest_honest < 3
    off, default = (training(one, -1e9, limits, 10, 0) for limits in ("off", "default"))
    assert default.left_out == 10 and default.honest_left_out == off.left_out == 0
    assert off.accuracy < default.accuracy - 10 and default.accuracy > clean["off"].accuracy - 5
