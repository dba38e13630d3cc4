"""Confusion matrices and histograms of margins: they add, and give scikit-learn's numbers."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, recall_score, roc_auc_score
from torch import Tensor

from fedstats_app.heads import ConfusionMatrix, MarginHistograms, margin_bins
from fedstats_app.heads.scores import BINS_PER_OCTAVE, LARGEST_EXPONENT, SMALLEST_EXPONENT, ZERO_BIN, label_margins

ZERO, NONE = torch.tensor([0, 0]), torch.zeros(2, 2, dtype=torch.int64)


@pytest.mark.parametrize("num_labels", [1, 2, 4, 6])
def test_f1_and_specificity_are_scikit_learns_where_classes_are_missing(num_labels: int) -> None:
    """Classes beyond `num_labels` are predicted and never true; class 6 is neither."""
    rng = np.random.default_rng(num_labels)
    labels, predictions = rng.integers(0, num_labels, 80), rng.integers(0, 6, 80)
    made = ConfusionMatrix.from_predictions(torch.from_numpy(labels), torch.from_numpy(predictions), 7)
    assert made.macro_f1 == pytest.approx(f1_score(labels, predictions, average="macro"))
    assert made.per_class_f1[:6].tolist() == pytest.approx(f1_score(labels, predictions, average=None).tolist())
    assert math.isnan(made.per_class_f1[6]) and made.per_class_specificity[6] == 1.0
    assert made.num_correct == int((labels == predictions).sum()) and made.num_examples == 80
    assert made.matrix[:6, :6].tolist() == confusion_matrix(labels, predictions, labels=range(6)).tolist()
    assert made.accuracy == pytest.approx(accuracy_score(labels, predictions))
    recalls = recall_score(labels, predictions, average=None, labels=range(num_labels))
    assert made.per_class_accuracy[:num_labels].tolist() == pytest.approx(recalls.tolist())
    for c in range(num_labels) if num_labels > 1 else ():
        expected = recall_score(labels != c, predictions != c)  # specificity is the recall of the rest
        assert float(made.per_class_specificity[c]) == pytest.approx(expected)


def test_a_class_without_samples_has_no_accuracy_and_is_left_out_of_the_macro_average() -> None:
    made = ConfusionMatrix.from_predictions(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2]), 4)
    assert made.per_class_accuracy[:3:2].tolist() == [0.5, 1.0]
    assert math.isnan(made.per_class_accuracy[1]) and math.isnan(made.per_class_accuracy[3])
    assert made.macro_accuracy == 0.75 and math.isnan(ConfusionMatrix.zeros(3).accuracy)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_narrow_integers_do_not_overflow(dtype: torch.dtype) -> None:
    classes = torch.arange(100).to(dtype)
    made = ConfusionMatrix.from_predictions(classes, classes, 100)
    assert torch.equal(made.matrix, torch.eye(100, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConfusionMatrix(torch.zeros(2, 3, dtype=torch.int64)), r"matrix must be \(2, 2\) int64, got \(2, 3\)"),
        (lambda: ConfusionMatrix(NONE, elsewhere=torch.zeros(2)), r"elsewhere must be \(2\) int64"),
        (lambda: ConfusionMatrix.from_predictions(torch.tensor([0, 2]), ZERO, 2), r"\[0, 2\), got values from 0 to 2"),
        (lambda: ConfusionMatrix.from_predictions(ZERO, ZERO.float(), 2), r"int64.*got \(2,\) torch.float32"),
    ],
)
def test_what_cannot_be_counted_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_pooled_samples_count_in_the_accuracy_and_in_no_class() -> None:
    matrix = ConfusionMatrix.from_predictions(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2]), 3)

    total = ConfusionMatrix(matrix.matrix, 4, 1) + ConfusionMatrix(matrix.matrix, 2, 2)

    assert (total.num_examples, total.pooled_examples, total.pooled_correct) == (12, 6, 3)
    assert total.accuracy == (4 + 3) / 12 and total.macro_accuracy == matrix.macro_accuracy


def test_samples_whose_prediction_is_not_said_are_wrong_and_count_for_their_class() -> None:
    some = ConfusionMatrix(torch.tensor([[3, 1], [0, 4]]), elsewhere=torch.tensor([2, 0]))

    assert (some.num_examples, some.num_correct) == (10, 7) and (some + some).num_examples == 20
    assert some.class_examples.tolist() == [6, 4] and some.per_class_accuracy.tolist() == [0.5, 1.0]
    assert some.per_class_specificity.tolist() == [1.0, 5 / 6] and some.per_class_f1.tolist() == [6 / 9, 8 / 9]


INF = float("inf")


def margins(scores: Tensor) -> Tensor:
    """Return score minus largest other score, by brute force."""
    others = [torch.cat([scores[:, :c], scores[:, c + 1 :]], dim=1).amax(dim=1) for c in range(scores.shape[1])]
    return scores - torch.stack(others, dim=1)


def areas(scores: Tensor, labels: Tensor) -> list[float]:
    values = margins(scores).numpy()
    return [float(roc_auc_score((labels == c).numpy(), values[:, c])) for c in range(scores.shape[1])]


def histograms(scores: Tensor, labels: Tensor) -> MarginHistograms:
    return MarginHistograms.zeros(scores.shape[1]).count_(margin_bins(scores), labels)


def draw(num_classes: int, n: int, *, scale: float = 1.0, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    """Draw scores in which a sample's own class is larger, and class 0 is moved by an offset."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, num_classes, (n,), generator=generator)
    scores = torch.randn(n, num_classes, dtype=torch.float64, generator=generator)
    scores[torch.arange(n), labels] += 1.5
    scores[:, 0] += offset
    return scale * scores, labels


@pytest.mark.parametrize(
    ("num_classes", "scale", "offset", "tolerance"), [(2, 1.0, 0.0, 5e-4), (5, 1e-4, -3.0, 1e-3), (5, 1e4, -8.0, 5e-3)]
)
def test_areas_are_scikit_learns_at_any_scale(num_classes: int, scale: float, offset: float, tolerance: float) -> None:
    """Far from zero bins are wider: an offset of eight standard deviations is seldom, three are a rare class's."""
    scores, labels = draw(num_classes, 2000, scale=scale, offset=offset)
    found, exact = histograms(scores, labels), areas(scores, labels)
    assert found.per_class_auroc.tolist() == pytest.approx(exact, abs=tolerance)
    assert float(found.per_class_auroc.nanmean()) == pytest.approx(np.mean(exact), abs=tolerance)
    off = (found.per_class_auroc - torch.tensor(exact, dtype=torch.float64)).abs()
    assert (off <= found.per_class_auroc_error + 1e-12).all() and found.macro_auroc_error < 0.02


@pytest.mark.parametrize("n", [2, 49, 197])
def test_a_perfect_ranking_has_an_area_of_exactly_one(n: int) -> None:
    """A result may not be above one, not even by rounding."""
    scores = torch.linspace(-3.0, 3.0, n, dtype=torch.float64)
    labels = (scores > -1.1).long()
    found = histograms(torch.stack([-scores - 1.1, scores + 1.1], dim=1), labels)
    assert found.per_class_auroc.tolist() == [1.0, 1.0] and float(found.per_class_auroc.nanmean()) == 1.0
    assert found.macro_auroc_error == 0.0


def test_areas_of_more_samples_than_anybody_has_do_not_overflow() -> None:
    """A site can claim what it likes, up to 10 million in a cell of the confusion matrix."""
    few = histograms(*draw(2, 200))
    many = MarginHistograms(few.positives * 10**11, few.negatives * 10**11)
    assert many.per_class_auroc.tolist() == pytest.approx(few.per_class_auroc.tolist())
    assert many.macro_auroc_error == pytest.approx(few.macro_auroc_error)


def test_a_class_that_the_head_does_not_know_is_ranked_by_chance() -> None:
    scores, labels = draw(3, 300)
    scores[:, 2] = -INF
    found = histograms(scores, labels)
    assert found.per_class_auroc[2] == 0.5
    difference = (scores[:, 0] - scores[:, 1]).numpy()  # the others are ranked as if there were no third
    assert found.per_class_auroc[0] == pytest.approx(roc_auc_score(labels.numpy() == 0, difference), abs=1e-3)


@pytest.mark.parametrize("score", [float("nan"), INF])
def test_scores_that_are_no_numbers_are_refused(score: float) -> None:
    with pytest.raises(ValueError, match="must be finite, or -inf"):
        histograms(torch.tensor([[0.0, score]]), torch.tensor([0]))


def test_bins_are_those_of_the_formula_around_every_bound() -> None:
    """By mantissa and exponent, of every bound, the numbers beside it and what lies beyond them, with either sign."""
    octaves = torch.arange(-25, 26, dtype=torch.float64)
    bounds = torch.outer(2.0**octaves, 1.0 + torch.arange(64, dtype=torch.float64) / 64).flatten()
    outside = torch.tensor([0.0, 5e-324, 1e-310, 2.0**20 - 1, 1e300, torch.inf], dtype=torch.float64)
    up, down = (torch.nextafter(bounds, torch.full_like(bounds, end)) for end in (torch.inf, 0.0))
    magnitude = torch.cat([bounds, up, down, outside])
    mantissa, exponent = torch.frexp(magnitude.clamp(2.0**SMALLEST_EXPONENT, 2.0**LARGEST_EXPONENT - 1.0))
    octave = exponent.to(torch.int64) - 1 - SMALLEST_EXPONENT
    step = BINS_PER_OCTAVE * octave + (2 * BINS_PER_OCTAVE * (mantissa - 0.5)).to(torch.int64) + 1
    step = torch.where(magnitude < 2.0**SMALLEST_EXPONENT, 0, step)

    # Two classes: a score of -m beside one of 0, the margins are -m and m.
    bins = margin_bins(torch.stack([-magnitude, torch.zeros_like(magnitude)], dim=1))

    assert bins.dtype == torch.int16 and torch.equal(bins[:, 0].to(torch.int64), ZERO_BIN - step)
    assert torch.equal(bins[:, 1].to(torch.int64), ZERO_BIN + step)


def test_margins_of_labels_are_over_the_best_other_class() -> None:
    scores = torch.tensor([[3.0, 1.0, -torch.inf], [0.5, 2.0, 2.0], [1.0, 4.0, -torch.inf]])
    assert label_margins(scores, torch.tensor([0, 1, 2])).tolist() == [2.0, 0.0, -math.inf]
    assert label_margins(scores, torch.tensor([1, 0, 0])).tolist() == [-2.0, -1.5, -3.0]
    with pytest.raises(ValueError):
        label_margins(torch.tensor([[math.nan, 1.0]]), torch.tensor([0]))
