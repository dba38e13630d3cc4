"""Local training: some epochs of SGD or Adam on one client's samples, with feature alignment as an extra loss.

Feature alignment holds a client's features near the federation's class means ("prototypes"), which stay fixed while the
backbone moves: FedCGS (Guan et al. 2025), "personalised one-shot", eq. 12; FedProto (Tan et al., AAAI 2022) and FedPAC
(Xu et al., ICLR 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedstats_app.statistics.accumulation import check_labels, check_tensor
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, batch_order, generator, reproducible_kernels
from fedstats_app.training.training_options import ADAM_BETAS, ADAM_EPS, LocalOptions


def class_mean_sum(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the sum over classes of the class mean of ||f - mu_c||^2: eq. 12 of FedCGS as it was meant.

    As printed, the 1/N_c stands outside of the sum over the classes c whose samples it counts. Features f (B, D) of
    labels (B,) count if their class is present, (C,) bool: if it has a mean mu_c among the prototypes (C, D). The sum
    is 0 if none counts.
    """
    offsets, labels = _offsets(features, labels, prototypes, present)
    counts = labels.bincount(minlength=len(prototypes)).to(offsets.dtype)
    return (offsets.square().sum(dim=1) / counts[labels]).sum()


def mean_square(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Return the mean of (f - mu_c)^2 over samples and coordinates: FedProto's and FedPAC's mean squared error.

    Smaller than :func:`class_mean_sum`, whose parameters it has, by a factor of about D times the number of classes.
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
    check_tensor("prototypes", prototypes, (None, None), prototypes.dtype)
    check_tensor("present", present, (len(prototypes),), torch.bool)
    if not bool(prototypes[present].isfinite().all()):
        raise ValueError("prototypes of present classes must be finite")
    if not 0.0 <= weight < math.inf:
        raise ValueError(f"weight must be at least 0 and finite, got {weight}")


def alignment_loss(form: str, prototypes: Tensor, present: Tensor, weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the extra loss ``weight * R`` for :func:`train_locally`; R is one of ``ALIGNMENT_FORMS``.

    Prototypes are used in the features' dtype and on their device. FedCGS gives no weight; FedProto and FedPAC use 1
    with the mean square.
    """
    function = ALIGNMENT_FORMS[form]
    return lambda features, labels: weight * function(features, labels, prototypes, present)


def _offsets(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return f - mu_c, (m, D), and the labels, (m,), of the samples whose class has a prototype."""
    counted = present.to(labels.device)[labels]
    return features[counted] - prototypes.to(features)[labels[counted]], labels[counted]


# Keeps the draw of flips apart from that of the batches. Not 0: numpy pads short keys with zeros.
_FLIP_STREAM = 0xF11B

ExtraLoss = Callable[[Tensor, Tensor], Tensor]


class Diverged(RuntimeError):
    """Training left the finite numbers: what it gave must not be used."""

    for_server = True


@dataclass(frozen=True)
class LocalReport:
    """What a client's training was: with n samples, in steps of all epochs.

    Attributes
    ----------
    loss : float
        Mean over the samples in the last epoch, each before its step: cross-entropy in nats plus the extra loss,
        without the proximal term.
    forward_passes : int
        Compute in forward passes of one sample through the backbone, a backward pass counting as two (Bernier's
        thesis): 3 n per epoch where the backbone is trained, n where it is frozen, 0 on cached features.
    """

    num_examples: int
    num_batches: int
    loss: float
    forward_passes: int


def train_locally(
    model: TunedModel,
    samples: Samples,
    options: LocalOptions,
    *,
    key: Sequence[int],
    extra_loss: ExtraLoss | None = None,
    smallest_batch: int = 0,
) -> LocalReport:
    """Train a model in place, by SGD or Adam on cross-entropy.

    Parameters
    ----------
    model : TunedModel
        On any device, where it stays; it comes back in evaluation mode.
    samples : Samples
        At least one, with labels in [0, C).
    options : LocalOptions
        How.
    key : sequence of int
        Each at least 0; with the epoch it decides batches and flips: (seed, client, absolute round), say.
    extra_loss : callable, optional
        From features (b, D) and labels (b,), both on the model's device, to a scalar that is added to the loss.
    smallest_batch : int
        A last batch of fewer samples is joined to the one before.

    Raises
    ------
    Diverged
        If a loss, or in the end a parameter, is not finite. The model is then of no use.
    ValueError
        If there are no samples, a label is out of range, or what is to be flipped are no images.
    """
    check_labels(samples.labels, model.num_classes)
    num_examples = len(samples.labels)
    if not num_examples:
        raise ValueError("training needs at least one sample, got none")
    training = _Training(model, samples, options, key, extra_loss, smallest_batch)
    model.train()
    try:
        with reproducible_kernels(model.device):
            losses = [training.run_epoch(epoch) for epoch in range(options.epochs)]
    finally:
        model.eval()
    broken = [name for name, value in model.trained_state().items() if not bool(value.isfinite().all())]
    if broken:
        raise Diverged(
            f"{broken[0]} is not finite after epoch {options.epochs}, batch {training.num_batches} of all epochs; "
            f"the mean loss was {losses[-1]}"
        )
    passes = 0 if model.backbone is None else 1 if model.tune == "probe" else 3
    return LocalReport(num_examples, training.num_batches, losses[-1], passes * options.epochs * num_examples)


@dataclass(eq=False)
class _Training:
    """One call of :func:`train_locally`, which says what the fields are."""

    _model: TunedModel
    _samples: Samples
    _options: LocalOptions
    _key: Sequence[int]
    _extra_loss: ExtraLoss | None
    _smallest_batch: int
    num_batches: int = 0

    def __post_init__(self) -> None:
        self._parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        # None without a proximal term: adding a zero would not change a bit, but cost a copy of the model.
        proximal = self._options.proximal_mu
        self._start = [parameter.detach().clone() for parameter in self._parameters] if proximal else None
        self._momentum_buffers: list[Tensor | None] = [None] * len(self._parameters)
        # For Adam, of every parameter: means of the gradient and of its square, and the number of steps.
        adaptive = self._parameters if self._options.client_optimizer == "adam" else []
        self._moments = [(torch.zeros_like(one), torch.zeros_like(one), torch.zeros(())) for one in adaptive]

    def run_epoch(self, epoch: int) -> float:
        """Take a step on every batch; return the mean loss over the samples."""
        num_examples, loss_sum = len(self._samples.labels), 0.0
        batches = batch_order(num_examples, self._options.batch_size, self._key, epoch, smallest=self._smallest_batch)
        flips = self._draw_flips(num_examples, epoch)
        for number, indices in enumerate(batches, start=1):
            inputs = self._samples.inputs(indices)
            if flips is not None:
                inputs = flip_images(inputs, flips[indices])
            loss = self._backward(inputs.to(self._model.device), self._samples.labels[indices].to(self._model.device))
            if not math.isfinite(loss):
                where = f"epoch {epoch + 1} of {self._options.epochs}, batch {number} of {len(batches)}"
                raise Diverged(f"{where}: the loss is {loss}")
            self._step()
            self.num_batches += 1
            loss_sum += loss * len(indices)
        return loss_sum / num_examples

    def _backward(self, inputs: Tensor, labels: Tensor) -> float:
        """Leave the gradient in the parameters; return the loss without the proximal term."""
        self._model.zero_grad(set_to_none=True)
        features = self._model.features(inputs)
        loss = F.cross_entropy(self._model.logits(features), labels)
        if self._extra_loss is not None:
            loss = loss + self._extra_loss(features, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._start is not None:
            for parameter, start in zip(self._parameters, self._start, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - start, alpha=self._options.proximal_mu)
        return float(loss.detach())

    @torch.no_grad()
    def _step(self) -> None:
        """Do what ``step`` of torch.optim.SGD or Adam does, without torch's compiler, which those classes import."""
        moved = [index for index, parameter in enumerate(self._parameters) if parameter.grad is not None]
        parameters: list[Tensor] = [self._parameters[index] for index in moved]
        gradients = [gradient for one in parameters if (gradient := one.grad) is not None]
        how: dict[str, Any] = {
            "lr": self._options.learning_rate,
            "weight_decay": self._options.weight_decay,
            "maximize": False,
        }
        if self._options.client_optimizer == "adam":
            means, squares, steps = ([self._moments[index][part] for index in moved] for part in range(3))
            how |= {"beta1": ADAM_BETAS[0], "beta2": ADAM_BETAS[1], "eps": ADAM_EPS, "foreach": False, "amsgrad": False}
            adam(parameters, gradients, means, squares, [], steps, **how)
            return
        buffers = [self._momentum_buffers[index] for index in moved]
        sgd(parameters, gradients, buffers, momentum=self._options.momentum, dampening=0.0, nesterov=False, **how)
        for index, buffer in zip(moved, buffers, strict=True):
            self._momentum_buffers[index] = buffer

    def _draw_flips(self, num_examples: int, epoch: int) -> Tensor | None:
        """Draw for every sample whether it is flipped in an epoch, which so does not depend on the batch size."""
        if not self._options.flip:
            return None
        return torch.from_numpy(generator(self._key, epoch, _FLIP_STREAM).random(num_examples) < 0.5)


def flip_images(images: Tensor, flipped: Tensor) -> Tensor:
    """Mirror the images (B, channels, height, width) where ``flipped`` (B,) is true; a ValueError refuses features."""
    if images.ndim != 4:
        raise ValueError(f"only images (B, channels, height, width) can be flipped, got {tuple(images.shape)}")
    return torch.where(flipped.to(images.device)[:, None, None, None], images.flip(-1), images)
