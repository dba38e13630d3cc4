"""Losses and slopes of a perturbed model, and the loss's curvature."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.fedmezo.directions import Directions, Probe
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.perturbation import Perturbation, curvatures, mean_loss, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.heads import LinearHead
from fedstats_app.training.local import Diverged
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from tests.support.networks import HEAD, make_images

PROBE = Probe(11, 1, 1e-2, Directions("gaussian"))


def literal_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """One sample at a time, by the definition."""
    total = 0.0
    for row, label in zip(inputs, labels, strict=True):
        scores = model(row[None]).detach().double()[0].tolist()
        largest = max(scores)
        total += largest + math.log(sum(math.exp(score - largest) for score in scores)) - scores[label]
    return total / len(labels)


def full(network: nn.Module, **options: Any) -> tuple[TunedModel, list[str]]:
    model = TunedModel(HEAD, backbone=network, tune="full", **options)
    return model, [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("how", ["read", "copy"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_loss_is_that_of_one_sample_at_a_time(network: nn.Module, dtype: torch.dtype, how: Any) -> None:
    model, names = full(network, temperature=0.5)
    samples, moved = make_images(23), full(network, temperature=0.5)[0].to(dtype)
    model.to(dtype)
    for sign in (1, -1):
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                parameter.copy_(PROBE.perturbed(model.get_parameter(name), name, sign))
        expected = literal_loss(moved, samples.inputs(torch.arange(23)).to(dtype), samples.labels)
        made = mean_loss(Perturbation(model, names, how=how), samples, 8, PROBE, sign)
        assert made == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
def test_the_quotient_is_the_slope_along_the_direction(network: nn.Module, distribution: Any) -> None:
    """Against autograd: the error is of second order in epsilon, where no ReLU changes sides."""
    model, names = full(network)
    model.double()
    samples, errors = make_images(40), []
    loss = nn.functional.cross_entropy(model(samples.inputs(torch.arange(40)).double()), samples.labels)
    slopes = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    for epsilon in (1e-5, 1e-6):
        probe = Probe(11, 0, epsilon, Directions(distribution))
        expected = 0.0
        for name, slope in slopes.items():
            z = torch.cat([values for _, values in probe.directions.blocks(11, 0, name, slope.numel())])
            expected += float(slope.flatten() @ z.double())
        errors.append(abs(projected_gradients(Perturbation(model, names), samples, 16, [probe])[0] / expected - 1))
    assert errors[0] < 1e-3 and errors[1] < 0.05 * errors[0]


def test_a_loss_that_is_no_number_is_divergence() -> None:
    model = nn.Linear(2, 3)
    samples = TensorSamples(torch.full((4, 2), 3e38), torch.tensor([0, 1, 2, 0]))
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[2.0, 2.0], [0.0, 0.0], [-2.0, 0.0]]))
    with pytest.raises(Diverged, match=r"direction 1, seed 11: the loss at theta \+ 0\.01 z is (nan|inf)"):
        projected_gradients(Perturbation(model, ["weight"]), samples, 2, [PROBE])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "at least one sample, got none"),
        ([0, 3], r"labels must lie in \[0, 3\), got values from 0 to 3"),
        ([0, -100], r"labels must lie in \[0, 3\), got values from -100 to 0"),
    ],
)
def test_samples_that_have_no_loss_are_refused(labels: list[int], message: str) -> None:
    samples = TensorSamples(torch.ones(len(labels), 2), torch.tensor(labels, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        mean_loss(Perturbation(nn.Linear(2, 3), ["weight"]), samples, 4, PROBE, 1)


def problem(n: int = 200, scale: float = 1.0) -> tuple[TunedModel, TensorSamples]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 6, generator=generator)
    truth = torch.randn(3, 6, generator=generator)
    labels = (inputs @ truth.T + torch.randn(n, 3, generator=generator)).argmax(1)
    head = LinearHead(scale * truth.double(), torch.zeros(3, dtype=torch.float64))
    return TunedModel(head, tune="probe"), TensorSamples(inputs, labels)


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


@pytest.mark.parametrize("scale", [256.0, 4096.0])
def test_from_a_start_that_is_far_too_sure_the_rate_lowers_the_loss(scale: float) -> None:
    """Within 8 epsilon its float32 loss bends by rounding alone, at times downwards: the rate was that of noise."""
    model, samples = too_sure(scale, torch.float32)
    perturbation = Perturbation(model, NAMES)
    mean = sum(curvatures(perturbation, samples, 150, [Probe(3, index, 1e-3, Directions()) for index in range(8)])) / 8
    assert mean > 0.0
    replica, rate, start = Replica(model, NAMES), 0.5 / mean, mean_loss(perturbation, samples, 150)
    losses = []
    for number in range(100):
        (slope,) = projected_gradients(perturbation, samples, 150, replica.probes(number))
        replica.apply([Update(number, (rate * slope,))])
        losses.append(mean_loss(perturbation, samples, 150))
    assert losses[-1] < 0.7 * start and max(losses) < 1.3 * start


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
