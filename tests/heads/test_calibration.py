"""Temperatures from sums: they add, they find the minimum, and probabilities are then right."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from fedstats_app.heads import CalibrationSums, calibration
from fedstats_app.heads.calibration import (
    NUM_BINS,
    TEMPERATURES,
    cross_fitted,
    median_temperature,
    person_losses,
    sample_losses,
    voted_temperature,
)

measured = CalibrationSums.from_logits
EMPTY = CalibrationSums.zeros()


def drawn(n: int, temperature: float, *, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw scores, and labels from softmax(scores / temperature): the temperature that calibrates is known."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (n, classes))
    gumbel = rng.gumbel(size=(n, classes))
    return torch.from_numpy(scores * temperature), torch.from_numpy((scores + gumbel).argmax(axis=1))


def mean_nll(logits: Tensor, labels: Tensor, temperature: float) -> float:
    return float(torch.nn.functional.cross_entropy(logits / temperature, labels))


def reference_ece(logits: Tensor, labels: Tensor, temperature: float) -> float:
    """Sum over bins of share of samples times the distance of mean confidence and accuracy, as the paper writes it."""
    confidence, predicted = torch.softmax(logits / temperature, dim=1).max(dim=1)
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    error = 0.0
    for number in range(NUM_BINS):
        inside = bins == number
        if inside.any():
            accuracy = (predicted == labels)[inside].double().mean()
            error += float(inside.double().mean() * (confidence[inside].mean() - accuracy).abs())
    return error


@pytest.mark.parametrize("seed", [0, 4])
def test_the_minimum_is_that_of_an_optimiser_on_all_scores(seed: int) -> None:
    logits, labels = drawn(300, 0.3 * 2**seed, seed=seed)
    sums = measured(logits, labels)
    found = sums.best_temperature()
    assert found is not None

    def objective(log_temperature: float) -> float:
        t = math.exp(log_temperature)
        one_more = -float(torch.log_softmax(logits / t, dim=1).mean())
        return mean_nll(logits, labels, t) + one_more / len(labels)

    best = minimize_scalar(objective, bounds=(math.log(1e-3), math.log(1e3)), method="bounded", options={"xatol": 1e-9})
    assert objective(math.log(found)) <= best.fun + 1e-5
    assert sums.mean_nll(1.0) == pytest.approx(mean_nll(logits, labels, 1.0), rel=1e-7)  # likelihoods are in float32
    assert sums.expected_calibration_error(1.0) == pytest.approx(reference_ece(logits, labels, 1.0), rel=1e-6)
    for temperature in (1e-3, found, 1e3):
        nll, gaps = sums.between(temperature)
        assert nll / 300 == pytest.approx(mean_nll(logits, labels, temperature), rel=1e-6, abs=1e-5)
        assert float(gaps.abs().sum()) / 300 == pytest.approx(reference_ece(logits, labels, temperature), abs=0.02)


@settings(max_examples=5, deadline=None)
@given(cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 1000))
def test_sums_add_whatever_the_split(cuts: list[int], seed: int) -> None:
    logits, labels = drawn(60, 0.7, seed=seed)
    logits[:, 4] = -torch.inf
    bounds = [0, *sorted(cuts), 60]
    total = CalibrationSums.zeros()
    for start, end in itertools.pairwise(bounds):
        total = total + measured(logits[start:end], labels[start:end])
    together = measured(logits, labels)
    torch.testing.assert_close(total.losses, together.losses, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(total.gaps, together.gaps, rtol=1e-12, atol=1e-9)
    assert total.num_examples == together.num_examples == int((labels != 4).sum())


def test_all_right_is_no_certainty() -> None:
    """Without the pseudo-sample the temperature would be the least there is, and every probability 1."""
    labels = torch.arange(30) % 3
    logits = torch.nn.functional.one_hot(labels, 3).double()
    temperature = measured(logits, labels).best_temperature()
    assert temperature is not None and min(TEMPERATURES) < temperature < 1
    wrong = 1 - float(torch.softmax(logits / temperature, dim=1).amax(dim=1).mean())
    assert 0.2 / 30 < wrong < 2 / 30


@pytest.mark.parametrize(
    "sums",
    [
        EMPTY,
        measured(torch.tensor([[2.0, -torch.inf]]), torch.tensor([0])),
        measured(torch.tensor([[2.0, -torch.inf]]), torch.tensor([1])),
    ],
    ids=["no samples", "one class", "only an absent class"],
)
def test_nothing_to_choose_from_gives_no_temperature(sums: CalibrationSums) -> None:
    assert sums.best_temperature() is None and cross_fitted((sums, EMPTY)) is None
    assert sums.num_examples or math.isnan(sums.mean_nll(1.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: measured(torch.tensor([[0.0, torch.nan]]), torch.tensor([0])), "got NaN"),
        (lambda: measured(torch.zeros(1, 2), torch.tensor([2])), r"lie in \[0, 2\), got values from 2 to 2"),
        (lambda: CalibrationSums(torch.zeros(4, 97), EMPTY.gaps, 0), r"losses must be \(4, 97\) float64, got"),
    ],
)
def test_what_cannot_be_measured_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_each_half_is_judged_at_the_temperature_of_the_other(seed: int, n: int) -> None:
    draw = np.random.default_rng(seed)
    logits, labels = torch.from_numpy(3.0 * draw.normal(size=(n, 4))), torch.from_numpy(draw.integers(0, 4, n))
    halves = [measured(logits[part], labels[part]) for part in (slice(0, n // 2), slice(n // 2, n))]

    fitted = cross_fitted(halves)

    assert fitted is not None and fitted.temperature == measured(logits, labels).best_temperature()
    others = [half.best_temperature() or fitted.temperature for half in halves]
    nll = [
        mean_nll(logits[part], labels[part], other) * len(labels[part])
        for part, other in zip((slice(0, n // 2), slice(n // 2, n)), reversed(others), strict=True)
        if len(labels[part])
    ]
    assert fitted.nll_after == pytest.approx(sum(nll) / n, rel=1e-4, abs=1e-4)


def test_a_vote_is_the_temperature_that_sums_choose() -> None:
    logits, labels = drawn(200, 30.0)
    logits[:, 3] = -math.inf  # a class that the head does not know; samples of it are left out
    fitted = measured(logits, labels).best_temperature()

    vote = voted_temperature(sample_losses(logits, labels), without_each=False)

    assert fitted is not None and vote is not None
    assert abs(math.log10(TEMPERATURES[vote] / fitted)) <= 0.5 / calibration.PER_DECADE + 1e-3


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(2, 30), st.floats(-4, 4))
def test_one_sample_decides_whether_there_is_a_vote_and_not_which(seed: int, number: int, scale: float) -> None:
    logits, labels = drawn(number, 1.0, seed=seed % 2**31)
    votes = set()
    for other in range(5):
        logits[0] = 10.0**scale * torch.randn(5, generator=torch.Generator().manual_seed(other), dtype=torch.float64)
        votes.add(voted_temperature(sample_losses(logits, labels, TEMPERATURES[::4]), without_each=True))

    assert len(votes - {None}) <= 1


def test_one_person_decides_whether_there_is_a_vote_and_not_which() -> None:
    """Of twelve, one with most of the samples."""
    logits, labels = drawn(60, 1.0, seed=3)
    persons, votes = torch.cat([torch.arange(11), torch.full((49,), 11)]), set()
    for scale in range(-4, 5):
        logits[11:] = 10.0**scale * torch.randn(49, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        losses = person_losses(sample_losses(logits, labels, TEMPERATURES[::4]), persons)
        assert losses.shape[1] == 12
        votes.add(voted_temperature(losses, without_each=True))

    assert len(votes - {None}) <= 1 and len(votes) == 2


@given(st.lists(st.tuples(st.integers(0, 96), st.integers(1, 100)), min_size=1, max_size=9), st.integers(0, 96))
def test_who_has_less_than_half_of_the_samples_stays_within_the_others(votes: list[tuple[int, int]], lie: int) -> None:
    number = sum(number for _, number in votes) - 1
    fitted = median_temperature([*votes, (lie, number)])

    assert fitted is not None and fitted.nll_after is None
    low, high = (TEMPERATURES[some(vote for vote, _ in votes)] for some in (min, max))
    assert 0.999 * low <= fitted.temperature <= 1.001 * high
    assert median_temperature([]) is None and median_temperature([(3, 0)]) is None
