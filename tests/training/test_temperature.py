"""The best temperature: against a fine grid."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedstats_app.training.evaluation import losses_by_temperature
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.start import TEMPERATURES, best_temperature
from tests.fedmezo.test_measures import problem


@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
def test_the_best_temperature_is_that_of_a_fine_grid(scale: float) -> None:
    model, samples = problem(scale=scale)
    losses = losses_by_temperature(model, samples, 64)
    chosen = best_temperature(losses)
    logits = model(samples.inputs(torch.arange(200))).detach().double()
    grid = [2.0 ** (step / 100) for step in range(-800, 801)]
    fine = min(grid, key=lambda t: float(F.cross_entropy(logits / t, samples.labels)))
    assert chosen == pytest.approx(fine, rel=0.02)
    assert losses == pytest.approx([float(F.cross_entropy(logits / t, samples.labels)) for t in TEMPERATURES])


def test_temperatures_at_the_edges() -> None:
    rising = [1 - math.exp(-t) for t in TEMPERATURES]
    assert TEMPERATURES[0] < best_temperature(rising) < 0.02  # the softest that gives up no more than 0.01
    falling = [math.exp(-t) for t in TEMPERATURES]
    assert best_temperature(falling[:-1] + [falling[-1] - 1e-3]) == TEMPERATURES[-1]
    assert best_temperature([math.log(3)] * len(TEMPERATURES)) == 1.0
    with pytest.raises(ValueError, match="there must be 33 finite losses"):
        best_temperature([1.0, math.nan])


def test_a_loss_needs_samples() -> None:
    model, _ = problem()
    nothing = TensorSamples(torch.empty(0, 6), torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one sample"):
        losses_by_temperature(model, nothing, 8)


def test_a_model_of_a_backbone_has_a_temperature_too() -> None:
    model, samples = problem()
    whole = TunedModel(model.to_head(), backbone=nn.Identity(), tune="full", temperature=2.0)
    plain = losses_by_temperature(model, samples, 64)
    assert losses_by_temperature(whole, samples, 64)[:-2] == pytest.approx(plain[2:], rel=1e-6)
