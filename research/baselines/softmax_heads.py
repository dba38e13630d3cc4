"""Softmax heads trained on features, at the server or by every client alone; averages (one-shot FedAvg), ensembles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedstats_app.heads import LinearHead, SolveReport
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import TensorSamples
from fedstats_app.training.training_options import LocalOptions

# FedCGS's settings for FedPFT, one-shot FedAvg and the ensemble alike.
SOFTMAX_OPTIONS = LocalOptions(epochs=50, batch_size=128, momentum=0.9, learning_rate=0.01)


def softmax_head(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    options: LocalOptions = SOFTMAX_OPTIONS,
    key: tuple[int, ...] = (0,),
) -> LinearHead:
    """Return a head trained from zero by SGD on cross-entropy.

    Parameters
    ----------
    features : Tensor
        (n, d) float32, at least one sample.
    labels : Tensor
        (n,) int64 in [0, C).
    num_classes : int
        C.
    options : LocalOptions
        Of the training.
    key : tuple of int
        Each at least 0; decides the batches.

    Returns
    -------
    LinearHead
        In float64; classes without a sample are absent.

    Raises
    ------
    Diverged
        If the loss or the head does not stay finite.
    ValueError
        If there are no samples or a label is out of range.
    """
    start = LinearHead(torch.zeros(num_classes, features.shape[1]), torch.zeros(num_classes))
    model = TunedModel(start, tune="probe")
    report = train_locally(model, TensorSamples(features, labels), options, key=key)
    present = torch.bincount(labels, minlength=num_classes) > 0
    head = model.to_head(present)
    solved = SolveReport(f"SGD, {options.epochs} epochs", {"loss": report.loss, "epochs": float(options.epochs)})
    return LinearHead(head.weight, head.bias, present, solved)


def average_heads(heads: Sequence[LinearHead], weights: Sequence[float]) -> LinearHead:
    """Return the weighted mean of heads: one-shot FedAvg, and the ensemble that averages logits.

    The two are one head, since logits are linear in it. The weights are the clients' samples for FedAvg, and all 1 for
    FedCGS's ensemble.

    Parameters
    ----------
    heads : sequence of LinearHead
        At least one, of one shape; added in the order given.
    weights : sequence of float
        One for each, at least 0, not all 0.

    Returns
    -------
    LinearHead
        In float64; a class is present where it is in one of the heads.

    Raises
    ------
    ValueError
        If the numbers of heads and weights differ, or the weights are not as above.
    """
    shares = torch.tensor(_shares(heads, weights), dtype=torch.float64)
    weight = torch.stack([head.weight.double() for head in heads])
    bias = torch.stack([head.bias.double() for head in heads])
    present = torch.stack([head.present for head in heads]).any(dim=0)
    return LinearHead(torch.tensordot(shares, weight, 1), torch.tensordot(shares, bias, 1), present)


def ensemble_probabilities(heads: Sequence[LinearHead], weights: Sequence[float], features: Tensor) -> Tensor:
    """Return the weighted mean of the heads' probabilities; no single linear head gives it, so all must be kept.

    Parameters
    ----------
    heads, weights : sequence
        As :func:`average_heads`. A head gives a class that its client does not have what its training left it.
    features : Tensor
        (n, d).

    Returns
    -------
    Tensor
        (n, C) float64.

    Raises
    ------
    ValueError
        As :func:`average_heads`.
    """
    total = torch.zeros(len(features), heads[0].num_classes if heads else 0, dtype=torch.float64)
    for share, head in zip(_shares(heads, weights), heads, strict=True):
        total += share * head.logits(features, mask_absent=False).double().softmax(dim=1)
    return total


def _shares(heads: Sequence[LinearHead], weights: Sequence[float]) -> list[float]:
    if not heads or len(heads) != len(weights):
        raise ValueError(f"there must be one weight per head and at least one, got {len(weights)} for {len(heads)}")
    if min(weights) < 0 or not 0 < sum(weights) < float("inf"):
        raise ValueError(f"weights must be at least 0, finite and not all 0, got {list(weights)[:5]}")
    return [weight / sum(weights) for weight in weights]
