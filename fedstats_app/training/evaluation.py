"""Scores of a model on samples, as values that can be added over batches and clients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.heads import ConfusionMatrix, HeadScores, LinearHead
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, check_labels, reproducible_kernels
from fedstats_app.training.start import TEMPERATURES


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions and losses of some samples; a commutative monoid under ``+``, up to the loss's rounding.

    Attributes
    ----------
    confusion : ConfusionMatrix
        True and predicted classes.
    loss_sum : float
        Cross-entropy in nats, summed over the samples in float64.
    """

    confusion: ConfusionMatrix
    loss_sum: float

    def __add__(self, other: Evaluation) -> Evaluation:
        """Return the scores of both."""
        if not isinstance(other, Evaluation):
            return NotImplemented
        return Evaluation(self.confusion + other.confusion, self.loss_sum + other.loss_sum)

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats; NaN without samples."""
        num_examples = self.confusion.num_examples
        return self.loss_sum / num_examples if num_examples else float("nan")


def evaluate(
    model: TunedModel,
    samples: Samples,
    num_classes: int,
    *,
    batch_size: int = 64,
    present: Tensor | None = None,
    largest_loss: float = math.inf,
) -> Evaluation:
    """Score a model in evaluation mode; it comes back in the mode it was in.

    Parameters
    ----------
    model : TunedModel
        On any device.
    samples : Samples
        Any number, with labels in [0, C).
    num_classes : int
        C, the model's.
    batch_size : int
        Samples per forward pass; it changes the last bits only.
    present : Tensor, optional
        (C,) bool: classes that may be predicted, by default all. The loss is over all of them in any case: a sample of
        an absent class would make it infinite.
    largest_loss : float
        Most that a sample adds to the loss.

    Raises
    ------
    ValueError
        If C is not the model's, a label is out of range, or the batch size is below 1.
    """
    if num_classes != model.num_classes:
        raise ValueError(f"num_classes must be the model's, {model.num_classes}, got {num_classes}")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if present is not None and (present.shape != (num_classes,) or present.dtype != torch.bool):
        raise ValueError(f"present must be ({num_classes},) bool, got {tuple(present.shape)} {present.dtype}")
    check_labels(samples.labels, num_classes)
    total, was_training = Evaluation(ConfusionMatrix.zeros(num_classes), 0.0), model.training
    model.eval()
    try:
        # Not inference_mode: a feature map keeps what it draws, and autograd refuses what was made there.
        with torch.no_grad(), reproducible_kernels(model.device):
            for first in range(0, len(samples.labels), batch_size):
                indices = torch.arange(first, min(first + batch_size, len(samples.labels)))
                total = total + _evaluate_batch(model, samples, indices, present, largest_loss)
    finally:
        model.train(was_training)
    return total


def score_head(
    model: TunedModel, head: LinearHead, samples: Samples, *, batch_size: int = 64, mask_absent: bool = True
) -> HeadScores:
    """Return all that samples say of the head that a training leaves, on the features of the model it is in.

    Parameters
    ----------
    model : TunedModel
        On any device, in evaluation mode.
    head : LinearHead
        As :meth:`TunedModel.to_head` gives it: without the temperature.
    samples : Samples
        Any number, with labels in [0, C).
    batch_size : int
        Samples per forward pass.
    mask_absent : bool
        Whether absent classes are never predicted.
    """
    total = HeadScores.zeros(head.num_classes)
    for features, labels in _features(model, samples, batch_size):
        predictions = head.predict(features, mask_absent=mask_absent)
        total += HeadScores.from_logits(head.logits(features), labels, predictions)
    return total


def head_logits(
    model: TunedModel, head: LinearHead, samples: Samples, *, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits (b, C) of a head and the labels (b,) of samples; arguments as :func:`score_head`."""
    for features, labels in _features(model, samples, batch_size):
        yield head.logits(features), labels


def _features(model: TunedModel, samples: Samples, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    for first in range(0, len(samples.labels), batch_size):
        indices = torch.arange(first, min(first + batch_size, len(samples.labels)))
        with torch.no_grad(), reproducible_kernels(model.device):
            features = model.features(samples.inputs(indices).to(model.device)).cpu()
        yield features, samples.labels[indices]


def _evaluate_batch(
    model: TunedModel, samples: Samples, indices: Tensor, present: Tensor | None, largest_loss: float
) -> Evaluation:
    labels = samples.labels[indices]
    logits = model(samples.inputs(indices).to(model.device)).to("cpu", torch.float64)
    if largest_loss < math.inf:
        loss_sum = float(F.cross_entropy(logits, labels, reduction="none").clamp(max=largest_loss).sum())
    else:
        loss_sum = float(F.cross_entropy(logits, labels, reduction="sum"))
    if present is not None:
        logits = logits.masked_fill(~present.cpu(), -torch.inf)
    return Evaluation(ConfusionMatrix.from_predictions(labels, logits.argmax(dim=1), model.num_classes), loss_sum)


def losses_by_temperature(
    model: TunedModel, samples: Samples, batch_size: int, *, largest: float = math.inf
) -> tuple[float, ...]:
    """Return the mean loss with the logits divided by each of ``TEMPERATURES``, by one forward pass.

    Parameters
    ----------
    model : TunedModel
        Its logits are divided by its own temperature already.
    samples : Samples
        At least one, with labels in [0, C).
    batch_size : int
        Samples per forward pass.
    largest : float
        Most that a sample's loss counts.

    Returns
    -------
    tuple of float
        In nats, in the order of ``TEMPERATURES``.

    Raises
    ------
    ValueError
        If there are no samples or a label is out of range.
    """
    num_examples = len(samples.labels)
    if not num_examples:
        raise ValueError("a loss needs at least one sample, got none")
    check_labels(samples.labels, model.num_classes)
    losses: list[list[float]] = []
    model.eval()
    with torch.no_grad(), reproducible_kernels(model.device):
        for first in range(0, num_examples, batch_size):
            indices = torch.arange(first, min(first + batch_size, num_examples))
            logits = model(samples.inputs(indices).to(model.device)).to("cpu", torch.float64)
            labels = samples.labels[indices]
            losses.append([_loss_sum(logits / t, labels, largest) for t in TEMPERATURES])
    return tuple(math.fsum(column) / num_examples for column in zip(*losses, strict=True))


def _loss_sum(logits: Tensor, labels: Tensor, largest: float) -> float:
    if largest == math.inf:
        return float(F.cross_entropy(logits, labels, reduction="sum"))
    return float(F.cross_entropy(logits, labels, reduction="none").clamp(max=largest).sum())
