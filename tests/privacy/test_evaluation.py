"""What an evaluation says of classes with few samples: nothing by name."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.heads import CalibrationSums, ConfusionMatrix, MarginHistograms, margin_bins
from fedstats_app.privacy import (
    NodePolicy,
    calibration_above_floor,
    calibration_terms,
    confusion_above_floor,
    loss_above_floor,
    margins_above_floor,
)
from tests.support.compare import same_bits

NUM_CLASSES = 4
samples = st.lists(st.tuples(st.integers(0, NUM_CLASSES - 1), st.integers(0, NUM_CLASSES - 1)), max_size=40)


def split(pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


@given(samples, st.integers(0, 8))
def test_a_named_class_and_the_unnamed_together_have_as_many_samples_as_the_floor(
    pairs: list[tuple[int, int]], floor: int
) -> None:
    labels, predictions = split(pairs)

    found = confusion_above_floor(labels, predictions, NUM_CLASSES, floor)

    rows = found.class_examples
    assert all(size == 0 or size >= floor for size in [*rows.tolist(), found.pooled_examples])
    # Columns of classes that the site does not name, which whoever asks may have made up.
    forged = found.matrix.sum(dim=0)[rows == 0]
    assert all(size == 0 or size >= floor for size in forged.tolist())
    counted = NodePolicy(floor).evaluable(labels, NUM_CLASSES)
    assert found.num_examples == int(counted.sum()) > len(pairs) - max(floor, 1)
    right = (labels == predictions)[counted]
    assert not len(right) or found.accuracy == int(right.sum()) / len(right)


@given(samples)
def test_without_a_floor_it_is_the_confusion_matrix(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = split(pairs)

    found = confusion_above_floor(labels, predictions, NUM_CLASSES, 0)

    assert torch.equal(found.matrix, ConfusionMatrix.from_predictions(labels, predictions, NUM_CLASSES).matrix)
    assert found.pooled_examples == 0 and bool(NodePolicy(0).evaluable(labels, NUM_CLASSES).all())


def test_small_classes_count_together_without_their_names() -> None:
    labels = torch.tensor([0] * 6 + [1] * 3 + [2] * 2)
    predictions = torch.tensor([0] * 6 + [1, 1, 0] + [2, 0])

    found = confusion_above_floor(labels, predictions, NUM_CLASSES, 5)

    assert found.matrix.sum(dim=1).tolist() == [6, 0, 0, 0]
    assert (found.pooled_examples, found.pooled_correct, found.accuracy) == (5, 3, 9 / 11)


def test_a_handful_without_a_class_to_hide_in_is_left_out() -> None:
    labels = torch.tensor([0] * 6 + [1] * 4)

    found = confusion_above_floor(labels, labels, NUM_CLASSES, 5)

    assert (found.num_examples, found.pooled_examples) == (6, 0)
    assert NodePolicy(5).evaluable(labels, NUM_CLASSES).tolist() == [True] * 6 + [False] * 4


@given(samples, st.integers(0, 8))
def test_histograms_are_of_named_classes_and_say_no_more_of_numbers_than_the_confusion_matrix(
    pairs: list[tuple[int, int]], floor: int
) -> None:
    labels, predictions = split(pairs)
    bins = margin_bins(torch.nn.functional.one_hot(predictions, NUM_CLASSES).double())

    found = margins_above_floor(labels, bins, floor)

    rows = confusion_above_floor(labels, predictions, NUM_CLASSES, floor).class_examples
    assert torch.equal(found.positives.sum(dim=1), rows)
    assert torch.equal(found.negatives.sum(dim=1), rows.sum() - rows)
    assert all(size == 0 or size >= floor for counts in (rows, rows.sum() - rows) for size in counts.tolist())
    cells = found.positives + found.negatives
    assert not len(cells[cells > 0]) or int(cells[cells > 0].min()) >= floor


def test_a_class_under_the_floor_looks_like_one_that_is_not_there() -> None:
    scores = torch.randn(10, NUM_CLASSES, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0] * 6 + [1] * 4)

    found, expected = (margins_above_floor(labels[:n], margin_bins(scores[:n]), 5) for n in (10, 6))

    assert torch.equal(found.positives, expected.positives) and torch.equal(found.negatives, expected.negatives)


@given(samples)
def test_without_a_floor_all_margins_count(pairs: list[tuple[int, int]]) -> None:
    labels, predictions = split(pairs)
    bins = margin_bins(torch.nn.functional.one_hot(predictions, NUM_CLASSES).double())

    found, expected = margins_above_floor(labels, bins, 0), MarginHistograms.from_bins(bins, labels)

    assert torch.equal(found.positives, expected.positives) and torch.equal(found.negatives, expected.negatives)


def test_many_samples_are_counted_in_pieces() -> None:
    labels = torch.arange(5000) % NUM_CLASSES
    bins = margin_bins(torch.randn(5000, NUM_CLASSES, generator=torch.Generator().manual_seed(0)))

    found, expected = margins_above_floor(labels, bins, 1), MarginHistograms.from_bins(bins, labels)

    assert torch.equal(found.positives, expected.positives) and torch.equal(found.negatives, expected.negatives)


def test_histograms_of_many_samples_with_a_floor_rank_as_well_as_without() -> None:
    labels = torch.arange(3000) % NUM_CLASSES
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(3000, NUM_CLASSES, generator=draw) + 1.5 * torch.nn.functional.one_hot(labels, NUM_CLASSES)

    found, exact = (margins_above_floor(labels, margin_bins(scores), floor).per_class_auroc for floor in (5, 0))

    assert float((found - exact).abs().max()) < 0.005 and float(exact.min()) < 0.95


def test_what_is_left_over_of_either_sign_does_not_change_sides_where_it_is_enough() -> None:
    """Six margins below zero and six above, each of another size."""
    margins = torch.tensor([-32.0, -8, -2, -1, -0.5, -0.1, 0.1, 0.5, 1, 2, 8, 32])
    bins = margin_bins(torch.stack([margins, torch.zeros(12)], dim=1))

    found = margins_above_floor(torch.tensor([1] * 6 + [0] * 6), bins, 6)

    assert found.per_class_auroc.tolist() == [1.0, 1.0]


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(-3, 4))
def test_a_sample_changes_no_sum_by_more_than_sixteen_steps(seed: int, scale: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = 10.0**scale * torch.randn(12, NUM_CLASSES, generator=draw, dtype=torch.float64)
    other = logits.clone()
    other[3] = 10.0 ** (4 - scale) * torch.randn(NUM_CLASSES, generator=draw, dtype=torch.float64)
    labels = torch.arange(12) % 2

    one, two = (calibration_above_floor(calibration_terms(scores, labels, 5), 5) for scores in (logits, other))

    steps = torch.tensor([1.0, 1.0, 4.0, 4.0], dtype=torch.float64).unsqueeze(1)
    moved = ((one.losses - two.losses) / steps).abs()
    assert torch.equal(moved, moved.round()) and float(moved[::2].max()) <= 17 and float(moved[1::2].max()) <= 33
    gaps = 8 * (one.gaps - two.gaps)
    assert torch.equal(gaps, gaps.round()) and float(gaps.abs().max()) <= 17
    assert float(one.gaps.abs().sum(dim=1).max()) <= 12


def test_without_a_floor_sums_are_what_they_are() -> None:
    logits, labels = 100 * torch.randn(30, NUM_CLASSES, dtype=torch.float64), torch.arange(30) % NUM_CLASSES
    expected = CalibrationSums.from_logits(logits, labels)

    found = calibration_above_floor(calibration_terms(logits, labels, 1), 1)

    assert same_bits(found.losses, expected.losses) and same_bits(found.gaps, expected.gaps)


def test_sums_with_a_floor_choose_nearly_the_same_temperature() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % NUM_CLASSES
    logits = 0.1 * (torch.randn(300, NUM_CLASSES, generator=draw) + 2.0 * torch.nn.functional.one_hot(labels))
    sites = [slice(first, first + 60) for first in range(0, 300, 60)]

    told = sum(
        (calibration_above_floor(calibration_terms(logits[one], labels[one], 5), 5) for one in sites),
        CalibrationSums.zeros(),
    ).fit()
    exact = CalibrationSums.from_logits(logits, labels).fit()

    assert told is not None and exact is not None
    assert abs(told.temperature / exact.temperature - 1) < 0.1 and abs(told.nll_after - exact.nll_after) < 0.01


def test_a_loss_leaves_in_steps() -> None:
    assert [loss_above_floor(x, named=True) for x in (0.0, 0.4, 7.6, 33.2)] == [0.0, 0.0, 8.0, 33.0]
    assert [loss_above_floor(x, named=False) for x in (0.0, 7.9, 8.1, 33.2)] == [0.0, 0.0, 16.0, 32.0]
