"""Local training: some epochs of SGD on one client's samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.statistics.accumulation import check_labels
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, batch_order, generator, reproducible_kernels
from fedstats_app.training.training_options import LocalOptions

# Keeps the draw of flips apart from that of the batches. Not 0: numpy pads short keys with zeros.
_FLIP_STREAM = 0xF11B

# Devices where cuDNN plans anew for every shape of a batch, and each client's last one may have another: of a first
# round on a GPU that took over a minute.
_FEW_SHAPES = frozenset({"cuda"})

ExtraLoss = Callable[[Tensor, Tensor], Tensor]


class Diverged(RuntimeError):
    """A loss or parameter is not finite."""

    for_server = True


@dataclass(frozen=True)
class LocalReport:
    """Size, loss and cost of a client's training.

    Attributes
    ----------
    loss : float
        Mean over the samples in the last epoch, each before its step: cross-entropy in nats plus the extra loss,
        without the proximal term.
    forward_passes : int
        Compute in forward passes of one sample through the backbone, a backward pass counting as two (Bernier's
        thesis), of n samples: 3 n per epoch if the backbone is trained, n if it is frozen, 0 on cached features.
    """

    num_examples: int
    num_batches: int
    loss: float
    forward_passes: int


class Sgd:
    """The steps of torch.optim.SGD; that class imports torch's compiler, three times as much as torch itself."""

    def __init__(self, parameters: Sequence[nn.Parameter], options: LocalOptions) -> None:
        self._parameters, self._options = parameters, options
        self._buffers: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        options = self._options
        for number, parameter in enumerate(self._parameters):
            direction = parameter.grad
            if direction is None:
                continue
            if options.weight_decay:
                direction = direction.add(parameter, alpha=options.weight_decay)
            if options.momentum:
                before = self._buffers.get(number)
                direction = direction.clone() if before is None else before.mul_(options.momentum).add_(direction)
                self._buffers[number] = direction
            parameter.add_(direction, alpha=-options.learning_rate)


def train_locally(
    model: TunedModel,
    samples: Samples,
    options: LocalOptions,
    *,
    key: Sequence[int],
    extra_loss: ExtraLoss | None = None,
    optimizer: Callable[[Sequence[nn.Parameter], LocalOptions], Any] = Sgd,
) -> LocalReport:
    """Train a model in place on cross-entropy, by SGD unless another optimiser is given.

    Parameters
    ----------
    model : TunedModel
        On any device; in evaluation mode afterwards.
    samples : Samples
        At least one, with labels in [0, C).
    options : LocalOptions
        Epochs, batches, rates.
    key : sequence of int
        Each at least 0; with the epoch it decides batches and flips: (seed, client, absolute round), say.
    extra_loss : callable, optional
        From features (b, D) and labels (b,), both on the model's device, to a scalar that is added to the loss.
    optimizer : callable
        From trained parameters and options to what has torch's ``step()``.

    Raises
    ------
    Diverged
        If a loss, or a parameter at the end, is not finite.
    ValueError
        If there are no samples, a label is out of range, or flipped samples are not images.
    """
    check_labels(samples.labels, model.num_classes)
    num_examples, num_batches, loss_sum = len(samples.labels), 0, 0.0
    if not num_examples:
        raise ValueError("training needs at least one sample, got none")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in parameters] if options.proximal_mu else []
    taken = optimizer(parameters, options)
    model.train()
    try:
        with reproducible_kernels(model.device):
            for epoch in range(options.epochs):
                loss_sum = 0.0
                batches = batch_order(num_examples, options.batch_size, key, epoch)
                flips = _draw_flips(num_examples, key, epoch) if options.flip else None
                for number, indices in enumerate(batches, start=1):
                    inputs = samples.inputs(indices)
                    if flips is not None:
                        inputs = flip_images(inputs, flips[indices])
                    loss = _backward(
                        model, filled(model, inputs, options.batch_size), samples.labels[indices], extra_loss
                    )
                    if not math.isfinite(loss):
                        where = f"epoch {epoch + 1} of {options.epochs}, batch {number} of {len(batches)}"
                        raise Diverged(f"{where}: the loss is {loss}")
                    for parameter, begun in zip(parameters, start, strict=bool(start)):
                        if parameter.grad is not None:
                            parameter.grad.add_(parameter.detach() - begun, alpha=options.proximal_mu)
                    taken.step()
                    loss_sum += loss * len(indices)
                num_batches += len(batches)
    finally:
        model.eval()
    loss = loss_sum / num_examples
    broken = [name for name, value in model.trained_state().items() if not bool(value.isfinite().all())]
    if broken:
        raise Diverged(
            f"{broken[0]} is not finite after epoch {options.epochs}, batch {num_batches} of all epochs; "
            f"the mean loss was {loss}"
        )
    passes = 0 if model.backbone is None else 1 if model.tune == "probe" else 3
    return LocalReport(num_examples, num_batches, loss, passes * options.epochs * num_examples)


def filled(model: TunedModel, inputs: Tensor, batch_size: int) -> Tensor:
    """Return inputs (B, ...) for a network on a GPU as one of few shapes, filled up by copies of the first.

    That is a power of two, or a whole batch. Layers run as in evaluation, so that no input changes another's features.
    """
    size = min(batch_size, 2 ** (len(inputs) - 1).bit_length())
    if model.backbone is None or model.device.type not in _FEW_SHAPES or size <= len(inputs):
        return inputs
    return torch.cat([inputs, inputs[:1].expand(size - len(inputs), *inputs.shape[1:])])


def _backward(model: TunedModel, inputs: Tensor, labels: Tensor, extra_loss: ExtraLoss | None) -> float:
    """Compute the gradient of the parameters from the first inputs, which have labels; return the loss."""
    model.zero_grad(set_to_none=True)
    labels, features = labels.to(model.device), model.features(inputs.to(model.device))[: len(labels)]
    loss = F.cross_entropy(model.logits(features), labels)
    if extra_loss is not None:
        loss = loss + extra_loss(features, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _draw_flips(num_examples: int, key: Sequence[int], epoch: int) -> Tensor:
    """Draw the flipped samples of an epoch, (n,) bool, whatever the batch size."""
    return torch.from_numpy(generator(key, epoch, _FLIP_STREAM).random(num_examples) < 0.5)


def flip_images(images: Tensor, flipped: Tensor) -> Tensor:
    """Mirror the images (B, channels, height, width) where ``flipped`` (B,) is true; a ValueError refuses features."""
    if images.ndim != 4:
        raise ValueError(f"only images (B, channels, height, width) can be flipped, got {tuple(images.shape)}")
    return torch.where(flipped.to(images.device)[:, None, None, None], images.flip(-1), images)
