"""A softmax head trained on features: at the server on drawn ones (CCVR, FedPFT), at a client on its own."""

from __future__ import annotations

import torch
from torch import Tensor

from fedstats_app.heads import LinearHead, SolveReport
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.options import LocalOptions
from fedstats_app.training.samples import TensorSamples

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
    told = SolveReport(f"SGD, {options.epochs} epochs", {"loss": report.loss, "epochs": float(options.epochs)})
    return LinearHead(head.weight, head.bias, present, told)
