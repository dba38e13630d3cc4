"""What an evaluation says of classes with few samples: nothing by name."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import ConfusionMatrix, MarginHistograms, margin_bins
from fedstats_app.privacy import NodePolicy, confusion_above_floor, margins_above_floor

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

    rows = found.matrix.sum(dim=1)
    assert all(size == 0 or size >= floor for size in [*rows.tolist(), found.pooled_examples])
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

    rows = confusion_above_floor(labels, predictions, NUM_CLASSES, floor).matrix.sum(dim=1)
    assert torch.equal(found.positives.sum(dim=1), rows)
    assert torch.equal(found.negatives.sum(dim=1), rows.sum() - rows)
    assert all(size == 0 or size >= floor for counts in (rows, rows.sum() - rows) for size in counts.tolist())


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

    found, expected = margins_above_floor(labels, bins, 5), MarginHistograms.from_bins(bins, labels)

    assert torch.equal(found.positives, expected.positives) and torch.equal(found.negatives, expected.negatives)
