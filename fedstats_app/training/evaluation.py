"""Scores of a model on samples, as values that can be added over batches and clients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.heads import ConfusionMatrix, HeadScores, LinearHead
from fedstats_app.statistics.accumulation import Addable, check_labels
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, reproducible_kernels
from fedstats_app.training.start import TEMPERATURES


@dataclass(frozen=True, eq=False)
class Evaluation(Addable):
    """Predictions of some samples and the sum of their cross-entropies in nats; a monoid under ``+``."""

    confusion: ConfusionMatrix
    loss_sum: float

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats; NaN without samples."""
        num_examples = self.confusion.num_examples
        return self.loss_sum / num_examples if num_examples else float("nan")


def evaluate(
    model: TunedModel,
    samples: Samples,
    *,
    batch_size: int = 64,
    present: Tensor | None = None,
) -> Evaluation:
    """Score a model in evaluation mode.

    Parameters
    ----------
    model : TunedModel
        On any device.
    samples : Samples
        Any number, with labels in [0, C).
    batch_size : int
        Samples per forward pass; it changes the last bits only.
    present : Tensor, optional
        (C,) bool: classes that may be predicted, by default all. The loss is over all of them in any case: a sample of
        an absent class would make it infinite.

    Raises
    ------
    ValueError
        If a label is out of range.
    """
    total = Evaluation(ConfusionMatrix.zeros(model.num_classes), 0.0)
    for logits, labels in _logits(model, samples, batch_size):
        loss_sum = _loss_sum(logits, labels)
        allowed = logits if present is None else logits.masked_fill(~present.cpu(), -torch.inf)
        confusion = ConfusionMatrix.from_predictions(labels, allowed.argmax(dim=1), model.num_classes)
        total = total + Evaluation(confusion, loss_sum)
    return total


def score_head(model: TunedModel, head: LinearHead, samples: Samples, *, batch_size: int = 64) -> HeadScores:
    """Score the head of a trained model on samples, on the model's features.

    The head is as :meth:`TunedModel.to_head` gives it, without the temperature.
    """
    total = HeadScores.zeros(head.num_classes)
    for features, labels in _features(model, samples, batch_size):
        logits = head.logits(features.cpu())
        total.count(logits, labels, logits.argmax(dim=1))
    return total


def _features(model: TunedModel, samples: Samples, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features (b, D) of samples in evaluation mode, on the model's device, and their labels (b,)."""
    check_labels(samples.labels, model.num_classes)
    model.eval()
    for indices in torch.split(torch.arange(len(samples.labels)), batch_size):
        if not len(indices):
            return  # a split of nothing is one empty part
        # Not inference_mode: a feature map keeps what it draws, and autograd refuses what was made there.
        with torch.no_grad(), reproducible_kernels(model.device):
            features = model.features(samples.inputs(indices).to(model.device))
        yield features, samples.labels[indices]


def _logits(model: TunedModel, samples: Samples, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits (b, C) of a model, float64 on the CPU, and the labels (b,) of samples."""
    for features, labels in _features(model, samples, batch_size):
        with torch.no_grad(), reproducible_kernels(model.device):
            logits = model.logits(features).to("cpu", torch.float64)
        yield logits, labels


def losses_by_temperature(model: TunedModel, samples: Samples, batch_size: int) -> tuple[float, ...]:
    """Return the mean loss in nats with the logits divided by each of ``TEMPERATURES``, by one forward pass.

    Logits are divided by the model's own temperature already. A ValueError says if there are no samples or a label is
    out of range.
    """
    num_examples = len(samples.labels)
    if not num_examples:
        raise ValueError("a loss needs at least one sample, got none")
    losses = [
        [_loss_sum(logits / t, labels) for t in TEMPERATURES] for logits, labels in _logits(model, samples, batch_size)
    ]
    return tuple(math.fsum(column) / num_examples for column in zip(*losses, strict=True))


def _loss_sum(logits: Tensor, labels: Tensor) -> float:
    return float(F.cross_entropy(logits, labels, reduction="sum"))
