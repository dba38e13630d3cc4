"""Counts of predictions and margins that do not speak of classes with few samples."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstats_app.heads import ConfusionMatrix, MarginHistograms

_ROWS_AT_ONCE = 1024


def confusion_above_floor(
    labels: Tensor, predictions: Tensor, num_classes: int, min_class_count: int
) -> ConfusionMatrix:
    """Count predictions; samples of a class with few of them count without their class.

    A row of a confusion matrix says how many samples of its class were evaluated, so a class with fewer than the floor
    gets none. Its samples go into the matrix's ``pooled`` counts, how many and how many of them right, so that the
    accuracy stays that of all samples; and where even these are fewer than the floor, they are left out
    (:meth:`~fedstats_app.privacy.NodePolicy.evaluable` leaves them out before they are read).

    Parameters
    ----------
    labels, predictions : Tensor
        (n,) integers in [0, C).
    num_classes : int
        C.
    min_class_count : int
        The floor; 0 gives the plain confusion matrix.
    """
    named = _named(labels, num_classes, min_class_count)
    matrix = ConfusionMatrix.from_predictions(labels[named], predictions[named], num_classes)
    num_pooled = int((~named).sum())
    if num_pooled < max(min_class_count, 1):
        return matrix
    num_right = int((labels[~named] == predictions[~named]).sum())
    return ConfusionMatrix(matrix.matrix, pooled_examples=num_pooled, pooled_correct=num_right)


def margins_above_floor(labels: Tensor, bins: Tensor, min_class_count: int) -> MarginHistograms:
    """Count margins of the samples whose class the confusion matrix names.

    A class with fewer samples than the floor gets no histogram of its own, and its samples are in no other class's
    either: the number of those would give theirs away. So a class under the floor looks like one that is not there, and
    the numbers in every histogram follow from the confusion matrix.

    A histogram of few samples comes close to the list of their margins, to six parts in a hundred each, though not
    which of them belong to one sample. So the floor is what protects a sample here: it hides among as many.

    Parameters
    ----------
    labels : Tensor
        (n,) integers in [0, C).
    bins : Tensor
        (n, C), of :func:`fedstats_app.heads.margin_bins`.
    min_class_count : int
        The floor; 0 counts all samples.
    """
    total = MarginHistograms.zeros(bins.shape[1])
    named = _named(labels, bins.shape[1], min_class_count).nonzero().squeeze(1)
    for first in range(0, len(named), _ROWS_AT_ONCE):  # counting widens the integers of so many
        rows = named[first : first + _ROWS_AT_ONCE]
        total += MarginHistograms.from_bins(bins[rows], labels[rows])
    return total


def _named(labels: Tensor, num_classes: int, min_class_count: int) -> Tensor:
    """Return (n,) bool: whether so many of these samples are of the same class that it may be named."""
    return torch.bincount(labels, minlength=num_classes)[labels] >= min_class_count
