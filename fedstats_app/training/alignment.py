"""Feature alignment: an extra loss that holds a client's features near the federation's class means.

FedCGS (Guan et al. 2025), "personalised one-shot", eq. 12; FedProto (Tan et al., AAAI 2022) and FedPAC (Xu et al., ICLR
2023). The class means ("prototypes") stay fixed while the backbone moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType

import torch
from torch import Tensor


def class_mean_sum(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the sum over classes of the class mean of ||f - mu_c||^2: eq. 12 of FedCGS as it was meant.

    As printed, the 1/N_c stands outside of the sum over the classes c whose samples it counts.

    Parameters
    ----------
    features : Tensor
        (B, D).
    labels : Tensor
        (B,) int64 in [0, C).
    prototypes : Tensor
        (C, D) class means mu.
    present : Tensor
        (C,) bool, classes that have one. Samples of others do not count.

    Returns
    -------
    Tensor
        Scalar; 0 where no sample counts.

    Raises
    ------
    ValueError
        If shapes disagree.
    """
    offsets, labels = _offsets(features, labels, prototypes, present)
    counts = labels.bincount(minlength=len(prototypes)).to(offsets.dtype)
    return (offsets.square().sum(dim=1) / counts[labels]).sum()


def mean_square(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the mean of (f - mu_c)^2 over samples and coordinates: FedProto's and FedPAC's mean squared error.

    Smaller than :func:`class_mean_sum` by a factor of about D times the number of classes. Parameters and errors are
    its too.
    """
    offsets, _ = _offsets(features, labels, prototypes, present)
    return offsets.square().mean() if len(offsets) else offsets.sum()


# From a form's name to its function.
ALIGNMENT_FORMS: MappingProxyType[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {"class-mean-sum": class_mean_sum, "mean-square": mean_square}
)


def check_alignment(form: str, prototypes: Tensor, present: Tensor, weight: float) -> None:
    """Refuse with a ValueError what is no form, no prototypes (C, D) with present (C,) bool, or no weight."""
    if form not in ALIGNMENT_FORMS:
        raise ValueError(f"form must be one of {', '.join(ALIGNMENT_FORMS)}, got {form!r}")
    if prototypes.ndim != 2 or present.shape != prototypes.shape[:1] or present.dtype != torch.bool:
        raise ValueError(
            f"prototypes must be (C, D) and present (C,) bool, got {tuple(prototypes.shape)}, {tuple(present.shape)} "
            f"{present.dtype}"
        )
    if not bool(prototypes[present].isfinite().all()):
        raise ValueError("prototypes of present classes must be finite")
    if not 0.0 <= weight < math.inf:
        raise ValueError(f"weight must be at least 0 and finite, got {weight}")


def alignment_loss(form: str, prototypes: Tensor, present: Tensor, weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the extra loss ``weight * R`` for :func:`fedstats_app.training.train_locally`.

    Parameters
    ----------
    form : str
        "class-mean-sum" or "mean-square".
    prototypes : Tensor
        (C, D) class means; they are used in the features' dtype and on their device.
    present : Tensor
        (C,) bool, classes that have one.
    weight : float
        lambda, at least 0. FedCGS gives no number; FedProto and FedPAC use 1 with the mean square.

    Raises
    ------
    ValueError
        If the form is unknown, shapes disagree, a present prototype is not finite, or the weight is out of range.
    """
    check_alignment(form, prototypes, present, weight)
    function = ALIGNMENT_FORMS[form]

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        return weight * function(features, labels, prototypes, present)

    return loss


def _offsets(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return f - mu_c, (m, D), and the labels, (m,), of the samples whose class has a prototype."""
    if features.shape != (len(labels), prototypes.shape[1]):
        raise ValueError(f"features must be ({len(labels)}, {prototypes.shape[1]}), got {tuple(features.shape)}")
    counted = present.to(labels.device)[labels]
    return features[counted] - prototypes.to(features)[labels[counted]], labels[counted]
