"""Local training: some epochs of SGD or Adam on one client's samples, with feature alignment as an extra loss.

Feature alignment holds a client's features near the federation's class means ("prototypes"), which stay fixed while the
backbone moves: FedCGS (Guan et al. 2025), "personalised one-shot"; FedProto (Tan et al., AAAI 2022) and FedPAC (Xu et
al., ICLR 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedstats_app.statistics.accumulation import check_labels
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, batch_order, generator, reproducible_kernels
from fedstats_app.training.training_options import ADAM_BETAS, ADAM_EPS, LocalOptions


def alignment_loss(prototypes: Tensor, present: Tensor, weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the extra loss for :func:`train_locally` that holds features near class means.

    It is ``weight`` times the mean of (f - mu_c)^2 over samples and coordinates, as FedProto and FedPAC have it with a
    weight of 1; FedCGS gives no weight. Prototypes (C, D) are used in the features' dtype and on their device. Samples
    count if their class is present, (C,) bool; without any the loss is 0.
    """

    def loss(features: Tensor, labels: Tensor) -> Tensor:
        counted = present.to(labels.device)[labels]
        offsets = features[counted] - prototypes.to(features)[labels[counted]]
        return weight * (offsets.square().mean() if len(offsets) else offsets.sum())

    return loss


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
