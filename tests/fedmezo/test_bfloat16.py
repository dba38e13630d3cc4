"""Weights in bfloat16 move as those in float32 do, by steps far below what bfloat16 tells apart."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.fedmezo import replica as module
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.perturbation import Perturbation, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.training.samples import TensorSamples

START, ROUNDS = 1.5, 300
SPACING = 2.0**-7  # of bfloat16 at the start


@dataclass(frozen=True)
class Run:
    """How far the weights moved (3, 8), by what steps, and the loss in float64 where they ended."""

    moved: Tensor
    steps: list[float]
    loss: float


def samples() -> TensorSamples:
    """Three classes of 100 samples each; weights that are all equal have the loss log 3."""
    labels = torch.arange(300) % 3
    inputs = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    inputs[torch.arange(300), labels] += 2
    return TensorSamples(inputs, labels)


def train(dtype: torch.dtype, *, epsilon: float, learning_rate: float = 3e-3, first_seed: int = 0) -> Run:
    """Train softmax regression."""
    model, data = nn.Linear(8, 3, bias=False), samples()
    nn.init.constant_(model.weight, START)
    replica = Replica(model.to(dtype), ["weight"], epsilon=epsilon)
    perturbation, steps = Perturbation(model, ["weight"]), []
    for seed in range(first_seed, first_seed + ROUNDS):
        (quotient,) = projected_gradients(perturbation, data, 300, replica.probes(seed))
        steps.append(learning_rate * quotient)
        replica.apply([Update(seed, (steps[-1],))])
    weight = model.weight.detach().double()
    logits = data.inputs(torch.arange(300)).double() @ weight.T
    return Run(weight - START, steps, float(F.cross_entropy(logits, data.labels)))


def along(moved: Tensor, other: Tensor) -> float:
    """How far something moved where another one did: 1 for as far, 0 for not at all."""
    return float((moved * other).sum() / other.square().sum())


def test_bfloat16_moves_as_float32_does() -> None:
    """As far along its way and to the same loss, in the mean over five runs of other seeds."""
    exact = train(torch.float32, epsilon=1e-2)
    assert sum(abs(step) for step in exact.steps) / ROUNDS < SPACING / 4 and exact.loss < 0.7
    runs = [train(torch.bfloat16, epsilon=1e-2, first_seed=1000 * number) for number in range(5)]
    distances = [along(run.moved, exact.moved) for run in runs]
    assert abs(mean(distances) - 1.0) < 0.15 and 0.5 < min(distances) <= max(distances) < 1.5
    assert abs(mean(run.loss for run in runs) - exact.loss) < 0.05


def test_rounding_to_nearest_would_not_move_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"epsilon": 1e-2, "learning_rate": 1e-3}
    exact, stochastic = (train(dtype, **small) for dtype in (torch.float32, torch.bfloat16))
    assert max(abs(step) for step in exact.steps) < SPACING / 2
    assert along(stochastic.moved, exact.moved) > 0.5 and stochastic.loss < 1.0
    monkeypatch.setattr(module, "round_stochastically", lambda values, bits: values.to(torch.bfloat16))
    assert not train(torch.bfloat16, **small).moved.any()
