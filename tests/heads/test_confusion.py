import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, f1_score, recall_score

from fedstats_app.heads import ConfusionMatrix

ZERO, NONE = torch.tensor([0, 0]), torch.zeros(2, 2, dtype=torch.int64)


def test_counts_and_scores_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels, predictions = rng.integers(0, 6, 200), rng.integers(0, 6, 200)
    made = ConfusionMatrix.from_predictions(torch.from_numpy(labels), torch.from_numpy(predictions), 6)
    expected = confusion_matrix(labels, predictions)
    assert made.matrix.tolist() == expected.tolist()
    assert made.num_examples == 200
    assert made.accuracy == pytest.approx(accuracy_score(labels, predictions))
    assert made.macro_accuracy == pytest.approx(balanced_accuracy_score(labels, predictions))
    assert made.per_class_accuracy.tolist() == pytest.approx((expected.diagonal() / expected.sum(axis=1)).tolist())


@pytest.mark.parametrize("num_labels", [1, 2, 4, 6])
def test_f1_and_specificity_are_scikit_learns_where_classes_are_missing(num_labels: int) -> None:
    """Classes beyond `num_labels` are predicted and never true; class 6 is neither."""
    rng = np.random.default_rng(num_labels)
    labels, predictions = rng.integers(0, num_labels, 80), rng.integers(0, 6, 80)
    made = ConfusionMatrix.from_predictions(torch.from_numpy(labels), torch.from_numpy(predictions), 7)
    assert made.macro_f1 == pytest.approx(f1_score(labels, predictions, average="macro"))
    assert made.per_class_f1[:6].tolist() == pytest.approx(f1_score(labels, predictions, average=None).tolist())
    assert math.isnan(made.per_class_f1[6]) and made.per_class_specificity[6] == 1.0
    assert made.num_correct == int((labels == predictions).sum())
    for c in range(num_labels) if num_labels > 1 else ():
        expected = recall_score(labels != c, predictions != c)  # specificity is the recall of the rest
        assert float(made.per_class_specificity[c]) == pytest.approx(expected)


def test_one_class_alone_has_no_specificity() -> None:
    made = ConfusionMatrix.from_predictions(torch.tensor([1, 1]), torch.tensor([1, 0]), 2)
    assert made.per_class_specificity[0] == 0.5 and math.isnan(made.per_class_specificity[1])


def test_a_class_without_samples_has_no_accuracy_and_is_left_out_of_the_macro_average() -> None:
    made = ConfusionMatrix.from_predictions(torch.tensor([0, 0, 2]), torch.tensor([0, 1, 2]), 4)
    assert made.per_class_accuracy[:3:2].tolist() == [0.5, 1.0]
    assert math.isnan(made.per_class_accuracy[1]) and math.isnan(made.per_class_accuracy[3])
    assert made.macro_accuracy == 0.75


def test_without_samples_there_is_no_accuracy() -> None:
    empty = ConfusionMatrix.zeros(3)
    assert all(math.isnan(score) for score in (empty.accuracy, empty.macro_accuracy, empty.macro_f1))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_narrow_integers_do_not_overflow(dtype: torch.dtype) -> None:
    classes = torch.arange(100).to(dtype)
    made = ConfusionMatrix.from_predictions(classes, classes, 100)
    assert torch.equal(made.matrix, torch.eye(100, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConfusionMatrix(torch.zeros(2, 3, dtype=torch.int64)), r"matrix must be \(2, 2\) int64, got \(2, 3\)"),
        (lambda: ConfusionMatrix(torch.zeros(2, 2)), r"int64, got \(2, 2\) torch.float32"),
        (lambda: ConfusionMatrix(NONE, elsewhere=torch.zeros(2)), r"elsewhere must be \(2\) int64"),
        (lambda: ConfusionMatrix.from_predictions(torch.tensor([0, 2]), ZERO, 2), r"\[0, 2\), got values from 0 to 2"),
        (
            lambda: ConfusionMatrix.from_predictions(ZERO, torch.tensor([0, -1]), 2),
            r"got values from -1 to 0",
        ),
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
    assert total.accuracy == (4 + 3) / 12
    assert total.macro_accuracy == matrix.macro_accuracy


def test_samples_whose_prediction_is_not_said_are_wrong_and_count_for_their_class() -> None:
    some = ConfusionMatrix(torch.tensor([[3, 1], [0, 4]]), elsewhere=torch.tensor([2, 0]))

    assert (some.num_examples, some.num_correct) == (10, 7) and (some + some).num_examples == 20
    assert some.class_examples.tolist() == [6, 4] and some.per_class_accuracy.tolist() == [0.5, 1.0]
    assert some.per_class_specificity.tolist() == [1.0, 5 / 6]
    assert some.per_class_f1.tolist() == [6 / 9, 8 / 9]


def test_confused_pairs_come_by_their_number_then_by_class() -> None:
    matrix = ConfusionMatrix(torch.tensor([[9, 1, 5], [0, 9, 1], [7, 0, 9]]))
    assert matrix.confused_pairs() == [(2, 0, 7), (0, 2, 5), (0, 1, 1), (1, 2, 1)]
    assert ConfusionMatrix.zeros(3).confused_pairs() == []
