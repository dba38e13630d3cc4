"""Where training starts: the best temperature, and the learning rate of a linear probe."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from fedstats_app.heads import solve_ncm
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training import LocalOptions
from fedstats_app.training.evaluation import evaluate, losses_by_temperature
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.start import (
    LARGEST_RATE,
    TEMPERATURES,
    best_temperature,
    probe_rate,
    probe_step,
    typical_steps,
)
from tests.fedmezo.test_objective import problem


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


@given(st.lists(st.integers(0, 500), min_size=1, max_size=20), st.integers(1, 40), st.integers(1, 3))
def test_the_typical_client_is_that_of_the_median_sample(sizes: list[int], batch_size: int, epochs: int) -> None:
    sizes = [*sizes, 7]
    typical = int(np.quantile(np.repeat(sizes, sizes), 0.5, method="inverted_cdf"))
    assert typical_steps(dict(enumerate(sizes)), batch_size, epochs, 1.0) == epochs * -(-typical // batch_size)
    # One that claims most of all samples does not slow the others down.
    claimed = dict.fromkeys(range(7), 10) | {7: 10**6}
    assert typical_steps(claimed, batch_size, epochs) == epochs * -(-10 // batch_size)


def test_one_client_with_a_class_of_its_own_does_not_move_the_rate() -> None:
    draw = np.random.default_rng(0)
    counts = torch.tensor([100, 100, 100, 100, 5])
    sums = 10.0 * torch.from_numpy(draw.normal(size=(5, 6)) + 3.0) * counts.unsqueeze(1)
    honest = probe_step(counts, sums)
    sums[4] *= 10.0  # as much as its length is allowed to be above what is usual
    lied = probe_step(counts, sums)
    assert honest is not None and lied is not None and 0.4 < lied / honest < 2.5


@pytest.mark.parametrize("seed", range(3))
def test_the_step_is_about_one_over_the_largest_curvature(seed: int) -> None:
    """Of features as rectified networks have them: L is half of the largest eigenvalue of their second moment."""
    draw = np.random.default_rng(seed)
    labels = torch.from_numpy(draw.integers(0, 10, 2000))
    centres = draw.normal(size=(10, 30)) + 2.0
    features = torch.from_numpy(np.maximum(centres[labels.numpy()] + draw.normal(size=(2000, 30)), 0.0))
    statistics = FeatureStatistics.from_features(features, labels, 10)
    with_one = torch.cat([features, torch.ones(2000, 1, dtype=torch.float64)], dim=1)
    curvature = 0.5 * float(torch.linalg.eigvalsh(with_one.T @ with_one / 2000)[-1])
    step = probe_step(statistics.class_counts, statistics.class_sums)
    assert step is not None and 0.7 < step * curvature < 1.2


def test_the_rate_follows_curvature_steps_and_classes() -> None:
    assert probe_rate(1e-4) == pytest.approx(4e-4) and probe_rate(1e-4, num_steps=8) == pytest.approx(4e-4)
    assert probe_rate(1e-4, num_steps=32) == pytest.approx(1e-4)
    assert probe_rate(1e-4, num_steps=32, made_classes=10) == pytest.approx(1e-3)
    assert probe_rate(1e-4, momentum=0.9) == pytest.approx(4e-5)
    assert probe_rate(1e-4, temperature=0.1) == pytest.approx(4e-6) and probe_rate(3.0) == LARGEST_RATE


@given(st.lists(st.integers(1, 50), min_size=2, max_size=8), st.integers(0, 2**32 - 1), st.floats(0.1, 100.0))
def test_laws_of_the_step(sizes: list[int], seed: int, scale: float) -> None:
    """l of 2 / (l + 1) is a squared length; order, empty classes and the number of equal samples do not matter."""
    counts = torch.tensor(sizes)
    sums = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(sizes), 4))) * counts.unsqueeze(1)

    def length(counts: torch.Tensor, sums: torch.Tensor) -> float:
        step = probe_step(counts, sums)
        assert step is not None and 0.0 < step < 2.0
        return 2.0 / step - 1.0

    found = pytest.approx(length(counts, sums), rel=1e-9, abs=1e-9)
    assert length(counts.flip(0), sums.flip(0)) == found
    assert length(torch.cat([counts, counts.new_zeros(1)]), torch.cat([sums, sums.new_zeros(1, 4)])) == found
    assert length(3 * counts, 3 * sums) == found and length(counts, scale * sums) / scale**2 == found
    assert probe_step(counts[:1], sums[:1]) is None


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
def test_a_calibrated_head_gains_at_the_rate_found_whatever_the_scale_of_the_features(scale: float) -> None:
    """At a fixed rate the largest features would diverge."""
    draw = np.random.default_rng(0)
    labels = torch.from_numpy(draw.integers(0, 5, 2000))
    centres = draw.normal(size=(5, 40)) + 3.0
    noise = np.linspace(0.5, 8.0, 40) * draw.normal(size=(2000, 40))  # so that class means alone are not the best
    features = torch.from_numpy(centres[labels.numpy()] + noise) * scale
    statistics = FeatureStatistics.from_features(features[:1000], labels[:1000], 5)
    train, test = (TensorSamples(features[part].float(), labels[part]) for part in (slice(0, 1000), slice(1000, 2000)))
    step = probe_step(statistics.class_counts, statistics.class_sums)
    assert step is not None
    rate = probe_rate(step)
    ncm = solve_ncm(statistics)
    temperature = best_temperature(losses_by_temperature(TunedModel(ncm, tune="probe"), train, 1000))
    model = TunedModel((ncm.weight / temperature, ncm.bias / temperature), tune="probe")
    before = evaluate(model, test)
    train_locally(model, train, LocalOptions(epochs=10, learning_rate=rate), key=(0,))
    after = evaluate(model, test)
    assert after.confusion.accuracy > before.confusion.accuracy and after.loss < before.loss
