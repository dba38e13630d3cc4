"""Evaluation under a floor: counts of classes with enough samples.

The server chooses the head, so every number here is an answer to a question of its own: a class without samples can be
made to catch one sample. So a cell that is not of the node's own classes has as many samples as the floor.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedstats_app.heads import ConfusionMatrix, MarginHistograms, filled_bins
from fedstats_app.heads.scores import NUM_MARGIN_BINS, ZERO_BIN
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.privacy.node_policy import distinct

# Classes whose histograms of margins leave, at most: each class's is a number per sample, of its own question.
MOST_WITH_MARGINS = 2
# Bins of histograms under a floor: 161, of 2^3 bins each.
_FIRST_LEVEL = 3


def confusion_above_floor(
    labels: Tensor, predictions: Tensor, num_classes: int, min_class_count: int, persons: Tensor | None = None
) -> ConfusionMatrix:
    """Count predictions; samples of a class with few of them count without their class. A floor of 0 changes nothing.

    A row of a confusion matrix says how many samples of its class were evaluated, so a class with fewer than the floor
    gets none. Its samples go into the matrix's ``pooled`` counts, how many and how many of them right, so that the
    accuracy stays that of all samples; and where even these are fewer than the floor, they are left out
    (:meth:`~fedstats_app.privacy.NodePolicy.evaluable` leaves them out before they are read).

    Which class a sample is taken for is told if that class is named too, or if as many samples as the floor are taken
    for it. Otherwise it counts as taken for some other class: there may be any number of classes without samples.

    Of ``persons``, (n,) int64, there must be as many as the floor, and the mean over them of the share right is told
    too, under a floor rounded to whole persons.
    """
    named = named_samples(labels, num_classes, min_class_count, persons)
    true, predicted = labels[named], predictions[named]
    whose = None if persons is None else persons[named]
    rows, columns = (distinct(classes, num_classes, whose) for classes in (true, predicted))
    disclosed = ((rows > 0) | (columns >= min_class_count))[predicted]
    matrix = ConfusionMatrix.from_predictions(true[disclosed], predicted[disclosed], num_classes).matrix
    elsewhere = torch.bincount(true[~disclosed], minlength=num_classes)
    right, num_pooled = labels == predictions, int((~named).sum())
    enough = num_pooled if persons is None else len(torch.unique(persons[~named]))
    if enough < max(min_class_count, 1):
        found, counted = ConfusionMatrix(matrix, elsewhere=elsewhere), named
    else:
        num_right = int(right[~named].sum())
        found, counted = ConfusionMatrix(matrix, num_pooled, num_right, elsewhere), torch.ones_like(named)
    if persons is None:
        return found
    of_persons = ConfusionMatrix.of_persons(right[counted], persons[counted], num_classes)
    if min_class_count > 1:
        whole = round(of_persons.person_shares / ConfusionMatrix.SHARE) * ConfusionMatrix.SHARE
        of_persons = replace(of_persons, person_shares=whole)
    return found + of_persons


def margins_above_floor(labels: Tensor, bins: Tensor, min_class_count: int, persons: Tensor | None = None) -> Tensor:
    """Count margins of the samples whose class the confusion matrix names.

    A class with fewer samples than the floor gets no histogram of its own, and its samples are in no other class's
    either: the number of those would give theirs away. So a class under the floor looks like one that is not there, and
    the numbers in every histogram follow from the confusion matrix.

    A histogram of few samples comes close to the list of their margins, so no bin is of some of the class, or of the
    others, but fewer than the floor: fewer share the bin in the middle of twice as many bins with what is left over
    there, and so on, each sign by itself. What is left in the end of either is counted at a margin of 0, or if that is
    too few, in their fullest bin. So a margin may be moved far for up to one less than the floor of a class's samples.
    Of more than MOST_WITH_MARGINS classes there are no histograms. With ``persons``, (n,) int64, the floor is that of
    :func:`floor_in_samples`.

    ``bins`` are (n, C), of :func:`fedstats_app.heads.margin_bins`; the result is as of
    :func:`fedstats_app.heads.filled_bins`, (t, 4) int64.
    """
    num_classes = bins.shape[1]
    if min_class_count > 1 and num_classes > MOST_WITH_MARGINS:
        return torch.zeros(0, 4, dtype=torch.int64)
    named = named_samples(labels, num_classes, min_class_count, persons)
    filled = filled_bins(bins[named], labels[named])
    if min_class_count <= 1 or not len(filled):
        return filled
    if persons is not None:
        min_class_count, counts = floor_in_samples(min_class_count, persons[named]), labels[named].bincount()
        if int(counts[counts > 0].min()) < min_class_count:
            return filled[:0]
    return _in_full_bins(MarginHistograms.zeros(num_classes).add_(filled), min_class_count).filled


def label_margins_above_floor(
    labels: Tensor, bins: Tensor, min_class_count: int, persons: Tensor | None = None, *, always: bool = False
) -> Tensor:
    """Count margins for the right classes where :func:`margins_above_floor` gives no histograms by class, or always.

    One histogram is of all classes that the confusion matrix names, with no bin of fewer samples than the floor. What
    it promises must hold (:mod:`fedstats_app.heads.coverage`), so a sample may count as one of a smaller margin, and
    never of a larger one: cells count at their lowest bin, and what is left over in bin 0, with the lowest cell if it
    is too few. Arguments are the same.

    Returns
    -------
    Tensor
        (t, 2) int64, bins and samples.
    """
    disclosed = torch.zeros(NUM_MARGIN_BINS, dtype=torch.int64)
    if always or (min_class_count > 1 and bins.shape[1] > MOST_WITH_MARGINS):
        named = named_samples(labels, bins.shape[1], min_class_count, persons)
        left = bins[named].gather(1, labels[named].unsqueeze(1)).flatten().long().bincount(minlength=NUM_MARGIN_BINS)
        floor = floor_in_samples(min_class_count, None if persons is None else persons[named])
        disclosed = _in_full_low_bins(left, floor) if floor > 1 else left
    filled = disclosed.nonzero().flatten()
    return torch.stack([filled, disclosed[filled]], dim=1)


def _in_full_low_bins(left: Tensor, floor: int) -> Tensor:
    disclosed = torch.zeros_like(left)
    for level in range(_FIRST_LEVEL, ZERO_BIN.bit_length() + 1):
        cells, lowest, _ = _cells(level)
        sums = torch.zeros(len(lowest), dtype=torch.int64).index_add_(0, cells, left)
        full = sums >= floor
        disclosed.index_add_(0, lowest, sums * full)
        left = left * ~full[cells]
    rest = left.sum()
    if 0 < rest < floor and disclosed.any():
        few = disclosed.nonzero()[0]
        rest += disclosed[few].item()
        disclosed[few] = 0
    if rest >= floor:
        disclosed[0] += rest
    return disclosed


def _cells(level: int) -> tuple[Tensor, Tensor, Tensor]:
    """Divide the bins of either sign, mirrored, into cells of 2^level.

    Returns
    -------
    cells : Tensor
        (bins,) int64, the cell of each bin.
    lowest, middles : Tensor
        (cells,) int64, bins.
    """
    places = torch.arange(NUM_MARGIN_BINS) - ZERO_BIN
    signed = torch.where(places < 0, -1 - (places.abs() >> level), places >> level)
    first = int(signed[0])
    numbers = torch.arange(first, -first)
    below, start = -1 - numbers << level, numbers << level
    half, last = 1 << level >> 1, (1 << level) - 1
    lowest = torch.where(numbers < 0, -below - last, start) + ZERO_BIN
    middles = torch.where(numbers < 0, -below - half, start + half) + ZERO_BIN
    lowest, middles = (found.clamp(0, NUM_MARGIN_BINS - 1) for found in (lowest, middles))
    return signed - first, lowest, middles


def floor_in_samples(floor: int, persons: Tensor | None) -> int:
    """Return how many samples are of as many persons as the floor, whichever they are, by the person (n,) of each."""
    if persons is None or floor <= 1 or not len(persons):
        return floor
    return (floor - 1) * int(torch.unique(persons, return_counts=True)[1].max()) + 1


def targets_above_floor(scores: TargetScores, floor: int) -> TargetScores:
    """Return scores of labels in full bins, without the labels and numbers of which too few samples were scored."""
    if floor <= 1:
        return scores
    sizes = torch.stack([scores.histograms.positives.sum(dim=1), scores.histograms.negatives.sum(dim=1)])
    enough = (sizes >= floor).all(dim=0).unsqueeze(1)
    kept = MarginHistograms(scores.histograms.positives * enough, scores.histograms.negatives * enough)
    moments = scores.moments * (scores.moments[:, :1] >= floor)
    inside = moments[:, 5]
    few = ((inside > 0) & (inside < floor)) | ((moments[:, 0] - inside > 0) & (moments[:, 0] - inside < floor))
    moments[:, 5] = torch.where(few, moments[:, 0], inside)
    return TargetScores(scores.kind, _in_full_bins(kept, floor), moments, scores.num_examples)


def _in_full_bins(margins: MarginHistograms, floor: int) -> MarginHistograms:
    """Return histograms with no bin of fewer samples than the floor, of as many samples at least."""
    left = torch.stack([margins.positives, margins.negatives])  # (2, C, bins)
    disclosed = torch.zeros_like(left)
    for level in range(_FIRST_LEVEL, ZERO_BIN.bit_length() + 1):
        cells, _, middles = _cells(level)
        sums = torch.zeros(*left.shape[:2], len(middles), dtype=torch.int64).index_add_(2, cells, left)
        full = ((sums >= floor) | (sums == 0)).all(dim=0)  # (C, cells)
        disclosed.index_add_(2, middles, sums * full)
        left = left * ~full[:, cells]
    rest = left.sum(dim=2)  # (2, C)
    fullest = torch.where(rest >= floor, ZERO_BIN, disclosed.argmax(dim=2))
    disclosed.scatter_add_(2, fullest.unsqueeze(2), rest.unsqueeze(2))
    return MarginHistograms(disclosed[0], disclosed[1])


def named_samples(labels: Tensor, num_classes: int, min_class_count: int, persons: Tensor | None = None) -> Tensor:
    """Return (n,) bool: whether enough of these samples (n,), or persons, are of the same class for it to be named."""
    return distinct(labels, num_classes, persons)[labels] >= min_class_count
