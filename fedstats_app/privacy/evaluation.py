"""Counts of right and wrong predictions that do not speak of classes with few samples."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstats_app.heads import ConfusionMatrix


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
    counts = torch.bincount(labels, minlength=num_classes)
    named = counts[labels] >= min_class_count
    matrix = ConfusionMatrix.from_predictions(labels[named], predictions[named], num_classes)
    num_pooled = int((~named).sum())
    if num_pooled < max(min_class_count, 1):
        return matrix
    num_right = int((labels[~named] == predictions[~named]).sum())
    return ConfusionMatrix(matrix.matrix, pooled_examples=num_pooled, pooled_correct=num_right)
