"""The loss's curvature: against automatic differentiation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedstats_app.fedmezo.directions import Directions, Probe
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.perturbation import Perturbation, curvatures, mean_loss, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.heads import LinearHead
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples


def problem(n: int = 200, scale: float = 1.0) -> tuple[TunedModel, TensorSamples]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 6, generator=generator)
    truth = torch.randn(3, 6, generator=generator)
    labels = (inputs @ truth.T + torch.randn(n, 3, generator=generator)).argmax(1)
    head = LinearHead(scale * truth.double(), torch.zeros(3, dtype=torch.float64))
    return TunedModel(head, tune="probe"), TensorSamples(inputs, labels)


def test_curvature_is_that_of_automatic_differentiation() -> None:
    model, samples = problem()
    model = model.double()
    names = [name for name, _ in model.named_parameters()]
    probes = [Probe(3, index, 1e-3, Directions()) for index in range(4)]
    made = curvatures(Perturbation(model, names), samples, 64, probes)
    inputs = samples.inputs(torch.arange(200)).double()

    def loss(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(inputs @ weight.T + bias, samples.labels)

    theta = (model.head.weight.detach(), model.head.bias.detach())
    for probe, value in zip(probes, made, strict=True):
        z = [
            torch.cat([block for _, block in probe.blocks(tensor, name)]).view(tensor.shape)
            for name, tensor in zip(("head.weight", "head.bias"), theta, strict=True)
        ]
        _, product = torch.autograd.functional.hvp(loss, theta, tuple(z))
        expected = sum(float((a * b).sum()) for a, b in zip(product, z, strict=True))
        assert value == pytest.approx(expected, rel=1e-3)


def test_the_mean_curvature_is_the_trace_of_the_hessian() -> None:
    model, samples = problem()
    model = model.double()
    probes = [Probe(seed, 0, 1e-3, Directions()) for seed in range(300)]
    made = curvatures(Perturbation(model, ["head.weight", "head.bias"]), samples, 200, probes)
    inputs = torch.cat([samples.inputs(torch.arange(200)).double(), torch.ones(200, 1, dtype=torch.float64)], dim=1)
    shares = (inputs[:, :6] @ model.head.weight.detach().T).softmax(1)
    trace = float(((shares * (1 - shares)).sum(1) * inputs.square().sum(1)).mean())
    assert sum(made) / 300 == pytest.approx(trace, rel=0.05)


def too_sure(scale: float, dtype: torch.dtype) -> tuple[TunedModel, TensorSamples]:
    """Return a head of 384 features that is right about most of 150 samples, and so many times too sure of all."""
    generator = torch.Generator().manual_seed(1)
    inputs = F.normalize(torch.randn(150, 384, generator=generator), dim=1)
    truth = F.normalize(torch.randn(2, 384, generator=generator), dim=1)
    labels = (inputs @ truth.T + 0.02 * torch.randn(150, 2, generator=generator)).argmax(1)
    model = TunedModel(LinearHead(20.0 * scale * truth.double(), torch.zeros(2).double()), tune="probe").to(dtype)
    with torch.no_grad():
        model.head.weight.copy_(20.0 * scale * truth.double())
    return model, TensorSamples(inputs, labels)


NAMES = ["head.weight", "head.bias"]


@pytest.mark.parametrize("scale", [256.0, 1024.0, 4096.0])
def test_from_a_start_that_is_far_too_sure_the_rate_lowers_the_loss(scale: float) -> None:
    """Within 8 epsilon its float32 loss bends by rounding alone, at times downwards: the rate was that of noise."""
    model, samples = too_sure(scale, torch.float32)
    perturbation = Perturbation(model, NAMES)
    probes = [Probe(3, index, 1e-3, Directions()) for index in range(8)]
    mean = sum(curvatures(perturbation, samples, 150, probes)) / 8
    assert mean > 0.0
    replica, rate, start = Replica(model, NAMES), 0.5 / mean, mean_loss(perturbation, samples, 150)
    losses = []
    for number in range(100):
        (slope,) = projected_gradients(perturbation, samples, 150, replica.probes(number))
        replica.apply([Update(number, (rate * slope,))])
        losses.append(mean_loss(perturbation, samples, 150))
    assert losses[-1] < 0.7 * start
    assert max(losses) < 1.3 * start


def test_a_curvature_that_is_seen_is_measured_near_the_model() -> None:
    for dtype in (torch.float32, torch.float64):
        model, samples = too_sure(0.1, dtype)
        perturbation = Perturbation(model, NAMES)
        probe = Probe(3, 0, 1e-3, Directions())
        far = Probe(3, 0, 8e-3, Directions())
        middle, *sides = [mean_loss(perturbation, samples, 150, *at) for at in ((None, 1), (far, 1), (far, -1))]
        assert curvatures(perturbation, samples, 150, [probe]) == ((sides[0] - 2 * middle + sides[1]) / 8e-3**2,)


def test_a_loss_that_is_not_finite_far_away_is_measured_less_far() -> None:
    class Narrow(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs) / (self.weight.abs().max() < 1.0)

    model = Narrow(2, 2).double()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([400.0, 0.0]))
    samples = TensorSamples(torch.ones(3, 2), torch.tensor([0, 0, 1]))
    (made,) = curvatures(Perturbation(model, ["weight", "bias"]), samples, 3, [Probe(3, 0, 1e-3, Directions())])
    assert math.isfinite(made)


def test_a_curvature_needs_samples() -> None:
    model, _ = problem()
    nothing = TensorSamples(torch.empty(0, 6), torch.empty(0, dtype=torch.int64))
    with pytest.raises(ValueError, match="at least one sample"):
        curvatures(Perturbation(model, ["head.bias"]), nothing, 8, [Probe(1, 0, 1e-3)])
