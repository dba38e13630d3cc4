"""What an evaluation says of classes with few samples: nothing by name."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import CalibrationSums, ConfusionMatrix, HeadScores, MarginHistograms, margin_bins
from fedstats_app.privacy import NodePolicy, confusion_above_floor, margins_above_floor
from fedstats_app.privacy.evaluation import floor_in_samples, label_margins_above_floor

NUM_CLASSES = 4
samples = st.lists(st.tuples(st.integers(0, NUM_CLASSES - 1), st.integers(0, NUM_CLASSES - 1)), max_size=40)


def split(pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def histograms(filled: torch.Tensor, num_classes: int = 2) -> MarginHistograms:
    return MarginHistograms.zeros(num_classes).add_(filled)


@given(samples, st.integers(0, 8))
def test_a_named_class_and_the_unnamed_have_as_many_as_the_floor(pairs: list[tuple[int, int]], floor: int) -> None:
    labels, predictions = split(pairs)

    found = confusion_above_floor(labels, predictions, NUM_CLASSES, floor)

    rows = found.class_examples
    assert all(size == 0 or size >= floor for size in [*rows.tolist(), found.pooled_examples])
    # Columns of classes that the site does not name, which whoever asks may have made up.
    assert all(size == 0 or size >= floor for size in found.matrix.sum(dim=0)[rows == 0].tolist())
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
def test_histograms_say_no_more_than_the_confusion_matrix(pairs: list[tuple[int, int]], floor: int) -> None:
    labels, predictions = (one % 2 for one in split(pairs))
    bins = margin_bins(torch.nn.functional.one_hot(predictions, 2) * torch.rand(len(labels), 1).double())

    found = histograms(margins_above_floor(labels, bins, floor))

    rows = confusion_above_floor(labels, predictions, 2, floor).class_examples
    assert torch.equal(found.positives.sum(dim=1), rows) and torch.equal(found.negatives.sum(dim=1), rows.sum() - rows)
    for counts in (rows, rows.sum() - rows, found.positives, found.negatives):
        assert not len(counts[counts > 0]) or int(counts[counts > 0].min()) >= floor


def test_a_class_under_the_floor_looks_like_one_that_is_not_there() -> None:
    scores = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0] * 6 + [1] * 4)

    found, expected = (margins_above_floor(labels[:n], margin_bins(scores[:n]), 5) for n in (10, 6))

    assert torch.equal(found, expected)


def test_histograms_of_many_samples_with_a_floor_rank_as_well_as_without() -> None:
    labels = torch.arange(3000) % 2
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(3000, 2, generator=draw) + 0.8 * torch.nn.functional.one_hot(labels, 2)

    found, exact = (
        histograms(margins_above_floor(labels, margin_bins(scores), floor)).per_class_auroc for floor in (5, 0)
    )

    assert float((found - exact).abs().max()) < 0.01 and float(exact.min()) < 0.95


def test_what_is_left_over_of_either_sign_does_not_change_sides_where_it_is_enough() -> None:
    """Six margins below zero and six above, each of another size."""
    margins = torch.tensor([-32.0, -8, -2, -1, -0.5, -0.1, 0.1, 0.5, 1, 2, 8, 32])
    bins = margin_bins(torch.stack([margins, torch.zeros(12)], dim=1))

    found = histograms(margins_above_floor(torch.tensor([1] * 6 + [0] * 6), bins, 6))

    assert found.per_class_auroc.tolist() == [1.0, 1.0]


def told(margins: torch.Tensor, labels: torch.Tensor, floor: int) -> HeadScores:
    """What a site says of two classes, the second of which has these margins."""
    logits = torch.stack([torch.zeros_like(margins), margins], dim=1)
    confusion = confusion_above_floor(labels, logits.argmax(dim=1), 2, floor)
    nothing, margins = CalibrationSums.zeros(), histograms(margins_above_floor(labels, margin_bins(logits), floor))
    return HeadScores(confusion, nothing, nothing, margins)


def test_an_area_does_not_contradict_an_accuracy_of_nine_in_ten() -> None:
    """Two wrong of twenty on each side are fewer than the floor: all margins were counted as 0, an area of a half."""
    margins, labels = torch.tensor([1.0] * 18 + [-1.0] * 20 + [1.0] * 2), torch.tensor([1] * 20 + [0] * 20)

    found = told(margins, labels, 12)

    assert found.confusion.accuracy == 0.9 and found.margins.per_class_auroc.tolist() == [0.5, 0.5]
    assert 0.81 <= found.macro_auroc <= 0.99


sites = st.lists(st.tuples(st.booleans(), st.integers(-20, 20)), min_size=1, max_size=60)


@given(st.lists(sites, min_size=1, max_size=3), st.sampled_from([0, 2, 5, 12]))
def test_with_two_classes_areas_suit_the_confusion_matrix(some: list[list[tuple[bool, int]]], floor: int) -> None:
    """Whatever the floor, of one site and of several."""
    total = HeadScores.zeros(2)
    for site in some:
        total += told(
            torch.tensor([margin / 10 for _, margin in site]), torch.tensor([int(one) for one, _ in site]), floor
        )

    right = total.confusion.per_class_accuracy
    least, most = float(right.prod()), float(1 - (1 - right).prod())
    areas = total.per_class_auroc.tolist()
    if bool((total.confusion.class_examples > 0).all()):
        assert all(least <= area <= most for area in areas)
    else:
        assert bool(total.per_class_auroc.isnan().all())
    if floor == 0:
        torch.testing.assert_close(total.per_class_auroc, total.margins.per_class_auroc, equal_nan=True)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 4))
def test_a_floor_in_samples_is_of_as_many_persons(persons: list[int], floor: int) -> None:
    number = floor_in_samples(floor, torch.tensor(persons))
    if number <= len(persons):
        commonest = sorted(persons, key=persons.count)[-number:]  # those of the fewest persons
        assert len(set(commonest)) >= floor


@given(samples, st.integers(2, 6), st.lists(st.integers(0, 7), min_size=40, max_size=40))
def test_floors_of_evaluation_count_persons(pairs: list[tuple[int, int]], floor: int, whose: list[int]) -> None:
    labels, predictions = split(pairs)
    persons = torch.tensor(whose[: len(pairs)], dtype=torch.int64)

    found = confusion_above_floor(labels, predictions, NUM_CLASSES, floor, persons)

    named = found.class_examples > 0
    for label in range(NUM_CLASSES):
        assert bool(named[label]) == (len(set(persons[labels == label].tolist())) >= floor)
    pooled = set(persons[~named[labels]].tolist())
    assert found.pooled_examples == (int((~named[labels]).sum()) if len(pooled) >= floor else 0)
    counted = named[labels] if not found.pooled_examples else torch.ones_like(labels, dtype=torch.bool)
    assert found.persons == len(set(persons[counted].tolist())) and found.persons not in range(1, floor)
    right = (labels == predictions)[counted].double()
    shares = [right[persons[counted] == person].mean() for person in set(persons[counted].tolist())]
    assert abs(found.person_shares / found.SHARE - float(sum(shares))) <= 0.5 + 1e-5
    assert found.person_shares % found.SHARE == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-30, 30)), max_size=60), st.sampled_from([2, 5, 12]))
def test_margins_for_the_right_classes_leave_in_full_bins_and_never_larger(
    pairs: list[tuple[int, int]], floor: int
) -> None:
    labels = torch.tensor([label for label, _ in pairs], dtype=torch.int64)
    logits = torch.zeros(len(pairs), 3, dtype=torch.float64)
    logits[torch.arange(len(pairs)), labels] = torch.tensor([margin / 4 for _, margin in pairs], dtype=torch.float64)
    bins = margin_bins(logits)

    found = label_margins_above_floor(labels, bins, floor)

    named = (torch.bincount(labels, minlength=3) >= floor)[labels]
    assert int(found[:, 1].sum()) == int(named.sum()) and bool((found[:, 1] >= floor).all()) and len(found) <= 161
    true = bins.gather(1, labels.unsqueeze(1)).flatten()[named].long().sort().values
    assert bool((found[:, 0].repeat_interleave(found[:, 1]) <= true).all())
    assert not len(label_margins_above_floor(labels, bins, 0)) and not len(
        label_margins_above_floor(labels.clamp(max=1), bins[:, :2], floor)
    )
