"""The trainings of the benchmark learn, its attacks do harm without limits, and its table says what its rows say."""

import pytest
import torch

from research.benchmarks import attacks_training
from research.benchmarks.attacks_training import Federation
from research.benchmarks.features import Features


def made_up(classes: int, dim: int, train: int, seed: int) -> tuple[Features, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    means, spread = torch.randn(classes, dim, generator=generator), torch.linspace(0.2, dim / 8 + 0.5, dim)

    def draw(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % classes
        return means[labels] + torch.randn(count, dim, generator=generator) * spread, labels

    return Features(*draw(train), *draw(600), classes), generator


@pytest.fixture(scope="module")
def one() -> Federation:
    data, generator = made_up(3, 12, 120, 0)
    parts = list(torch.randperm(120, generator=generator).split(12))
    return Federation(data, torch.arange(120), [*parts, torch.empty(0, dtype=torch.int64)])


@pytest.mark.parametrize("name", attacks_training.TRAININGS)
def test_limits_change_little_without_a_hostile_client_and_stop_it(one: Federation, name: str) -> None:
    training, _ = attacks_training.TRAININGS[name]
    clean = {limits: training(one, 1.0, limits, 10, 0) for limits in ("off", "default")}
    assert abs(clean["off"].accuracy - clean["default"].accuracy) < 3
    assert min(one.accuracy for one in clean.values()) >= clean["off"].start - 5
    for times in (-1e9, attacks_training.JUST_BELOW):
        off, default = (training(one, times, limits, 10, 0) for limits in ("off", "default"))
        assert off.accuracy < default.accuracy - 10 and default.accuracy > clean["off"].accuracy - 5
        assert off.cut == 0.0 and (name == "fedmezo" or default.cut == 1.0)
