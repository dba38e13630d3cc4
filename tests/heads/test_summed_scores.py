"""Scores that are summed under masks: those of all samples together, whatever the split."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.heads import ClientScores, ConfusionMatrix, HeadScores, margin_bins
from fedstats_app.heads.calibration import sample_losses
from fedstats_app.heads.summed_scores import (
    LOSS_STEP,
    MOST_LOSS,
    SUMMED_TEMPERATURES,
    SummedScores,
)
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.privacy.evaluation import label_margins_above_floor
from fedstats_app.statistics.secure_words import WORD_BYTES, as_words, numbers_of, packed, unpacked

C = 4


def drawn(n: int, seed: int, noise: float = 0.6) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores in which the right class is one larger, up to noise."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, C, (n,), generator=draw)
    return torch.nn.functional.one_hot(labels, C) + noise * torch.randn(n, C, generator=draw).double(), labels


def of_client(logits: torch.Tensor, labels: torch.Tensor) -> SummedScores:
    confusion = ConfusionMatrix.from_predictions(labels, logits.argmax(dim=1), C)
    margins = label_margins_above_floor(labels, margin_bins(logits), 0, always=True)
    losses = sample_losses(logits, labels, SUMMED_TEMPERATURES)[0]
    scores = ClientScores(confusion, torch.zeros(0, 4), None, margins, losses)
    return SummedScores.of(scores, by_class=True)


def summed(parts: list[torch.Tensor]) -> torch.Tensor:
    """Add numbers as they travel: as words modulo 2^64."""
    shapes = [(len(parts[0]), WORD_BYTES)]
    words = [unpacked(packed([as_words(part)], shapes))[0] for part in parts]
    return numbers_of(sum(words[1:], words[0])).long()


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.integers(0, 2**20))
def test_sums_over_clients_are_the_scores_of_all_samples(sizes: list[int], seed: int) -> None:
    logits, labels = drawn(sum(sizes), seed)
    parts = zip(logits.split(sizes), labels.split(sizes), strict=True)
    found = SummedScores.from_numbers(summed([of_client(*part).numbers for part in parts]), C)

    plain = HeadScores.zeros(C).count(logits, labels, logits.argmax(dim=1))
    assert found.scores.confusion.num_examples == plain.confusion.num_examples == len(labels)
    assert torch.equal(found.right, plain.confusion.matrix.diagonal())
    assert torch.equal(found.scores.confusion.class_examples, plain.confusion.class_examples)
    assert torch.equal(found.of_labels, plain.margins.positives.sum(dim=0))
    losses = sample_losses(logits, labels, SUMMED_TEMPERATURES)[0].clamp(max=MOST_LOSS).sum(dim=0)
    assert float((found.losses * LOSS_STEP - losses).abs().max()) <= len(sizes) * LOSS_STEP / 2 + 1e-6


@pytest.mark.parametrize("noise", [0.3, 0.6, 1.2])
def test_the_temperature_is_near_the_best_one(noise: float) -> None:
    """Within half of the distance of two temperatures that are summed, over ten clients."""
    logits, labels = drawn(2000, 1, noise)
    best = HeadScores.zeros(C).count(logits, labels, labels).calibration.best_temperature()
    parts = [of_client(*part).numbers for part in zip(logits.split(200), labels.split(200), strict=True)]
    found = SummedScores.from_numbers(summed(parts), C).calibration
    assert best is not None and found is not None
    assert abs(math.log10(found.temperature / best)) < 0.125


def test_where_all_is_right_no_probability_is_1_and_without_samples_there_is_none() -> None:
    logits, labels = drawn(100, 2, noise=0.0)
    found = of_client(logits, labels).calibration
    assert found is not None and 0.05 < found.temperature < 0.5
    assert of_client(logits[:0], labels[:0]).calibration is None


def test_predictions_that_nobody_names_are_in_no_measure() -> None:
    found = of_client(*drawn(100, 3)).scores.confusion
    assert 0.0 < found.accuracy < 1.0 and found.per_class_accuracy.isfinite().all()
    assert found.per_class_f1.isnan().all() and found.per_class_specificity.isnan().all()


@pytest.mark.parametrize(("place", "change"), [(0, -1000), (2 * C, -1), (2 * C + 1, 5), (2 * C + 4, 5)])
def test_sums_of_no_samples_are_refused(place: int, change: int) -> None:
    """One right more of those without a class than there are, one margin more than samples."""
    numbers = of_client(*drawn(50, 4)).numbers
    assert len(numbers) == SummedScores.num_numbers(C)
    numbers[place] += change
    with pytest.raises(ValueError, match="a sum of scores is out of its range"):
        SummedScores.from_numbers(numbers, C)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 2**20))
def test_sums_of_labels_are_those_of_all_samples(sizes: list[int], seed: int) -> None:
    scores, _ = drawn(sum(sizes), seed)
    targets = (scores + torch.randn(scores.shape, generator=torch.Generator().manual_seed(seed)) > 0.5).double()
    targets[::3, 1] = torch.nan
    head = None
    parts = zip(scores.split(sizes), targets.split(sizes), strict=True)
    numbers = summed([TargetScores.of("labels", *part, head).numbers for part in parts])  # type: ignore[arg-type]
    found, plain = TargetScores.from_numbers(numbers, C), TargetScores.of("labels", scores, targets, head)  # type: ignore[arg-type]
    assert found.num_examples == plain.num_examples
    assert torch.equal(found.histograms.positives, plain.histograms.positives)
    assert torch.equal(found.histograms.negatives, plain.histograms.negatives)
    with pytest.raises(ValueError, match="a sum of scores is out of its range"):
        TargetScores.from_numbers(numbers - 1, C)
