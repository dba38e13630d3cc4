"""Distilling an ensemble of networks into one without data: DENSE and Co-Boosting.

DENSE (Zhang et al., NeurIPS 2022) trains a generator of images that the ensemble is sure of, and on which a student
differs from it. Co-Boosting (Dai et al., ICLR 2024) makes images that are hard for the ensemble, moves the networks'
weights in it, and disturbs the images. Both begin a new generator every epoch and keep all images in a pool.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import generator
from research.baselines.whole_networks import Ensemble

_DRAWS = 0xDE5E


@dataclass(frozen=True)
class DataFreeOptions:
    """Settings of a distillation; as they stand those of DENSE's published example.

    Attributes
    ----------
    epochs, steps, batch : int
        Epochs, steps of the generator in each, and images of an epoch, with which the student trains in batches.
    noise_size, width : int
        Numbers that an image is made of, and channels of the generator's last layer but one.
    hardness : float
        Power of the chance of a wrong answer by which cross-entropy counts; 0 weighs all images alike.
    masked : bool
        True if student and ensemble are pushed apart only where they predict different classes.
    batch_norm : float
        Weight of the distance from the networks' running statistics.
    divergence_temperature, temperature : float
        By which logits are divided for the generator, and for the student.
    learning_rate, momentum : float
        Of the student's SGD.
    weight_step : float
        Of the networks' weights for each batch, shrinking by a hundredth each epoch; 0 keeps them alike.
    disturbance : float
        Most that a number of an image in [-1, 1] is moved before the student sees it.
    """

    epochs: int = 200
    steps: int = 30
    batch: int = 256
    noise_size: int = 256
    width: int = 64
    hardness: float = 0.0
    masked: bool = True
    batch_norm: float = 1.0
    divergence_temperature: float = 1.0
    temperature: float = 20.0
    learning_rate: float = 0.005
    momentum: float = 0.9
    weight_step: float = 0.0
    disturbance: float = 0.0


DENSE = DataFreeOptions()
CO_BOOSTING = DataFreeOptions(
    batch=128,
    hardness=1.0,
    masked=False,
    batch_norm=0.0,
    divergence_temperature=3.0,
    temperature=4.0,
    learning_rate=0.01,
    weight_step=0.01,
    disturbance=8 / 255,
)


class ImageGenerator(nn.Module):
    """From (n, z) noise to (n, channels, side, side) images in [0, 1]; drawn anew from numpy's generator.

    Parameters
    ----------
    noise_size, width, channels, side : int
        z, channels of the last layer but one, and the images' size; the side is a multiple of 4.
    draw : numpy.random.Generator
        Of the weights: convolutions and linear layer N(0, 0.02), BatchNorm N(1, 0.02).
    """

    def __init__(self, noise_size: int, width: int, channels: int, side: int, draw: np.random.Generator) -> None:
        super().__init__()
        self._shape = (2 * width, side // 4, side // 4)
        with torch.random.fork_rng(devices=[]):  # layers draw their weights, which are drawn again below
            self._first = nn.Linear(noise_size, math.prod(self._shape))
            self._rest = nn.Sequential(
                nn.BatchNorm2d(2 * width),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
                nn.BatchNorm2d(2 * width),
                nn.LeakyReLU(0.2),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.LeakyReLU(0.2),
                nn.Conv2d(width, channels, 3, padding=1),
                nn.Sigmoid(),
            )
        with torch.no_grad():
            for layer in self.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
                    drawn = torch.from_numpy(draw.standard_normal(layer.weight.shape)).float()
                    layer.weight.copy_(0.02 * drawn + isinstance(layer, nn.BatchNorm2d))
                    if layer.bias is not None:
                        layer.bias.zero_()

    def forward(self, noise: Tensor) -> Tensor:
        """Return images of (n, z) noise."""
        images: Tensor = self._rest(self._first(noise).reshape(len(noise), *self._shape))
        return images


def normalised(images: Tensor) -> Tensor:
    """Return images in [0, 1] as the networks take them, in [-1, 1]."""
    return 2.0 * images - 1.0


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """Return (n,) Kullback-Leibler divergences of the student's softmax from the teacher's, times T squared."""
    own, other = (F.log_softmax(logits / temperature, dim=1) for logits in (teacher, student))
    return F.kl_div(other, own, reduction="none", log_target=True).sum(dim=1) * temperature**2


def generator_loss(teacher: Tensor, student: Tensor, labels: Tensor, options: DataFreeOptions) -> Tensor:
    """Return the generator's loss without the distance of statistics: sure and right, and unlike the student.

    Parameters
    ----------
    teacher, student : Tensor
        (n, C) logits.
    labels : Tensor
        (n,) int64 that the images are to have.
    options : DataFreeOptions
        ``hardness``, ``masked`` and ``divergence_temperature`` are used.
    """
    losses = F.cross_entropy(teacher, labels, reduction="none")
    if options.hardness:
        chances = F.softmax(teacher.detach(), dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)
        losses = (1.0 - chances) ** options.hardness * losses
    apart = divergence(teacher, student, options.divergence_temperature)
    if options.masked:
        apart = apart * (teacher.argmax(dim=1) != student.argmax(dim=1))
    return losses.mean() - apart.mean()


def distilled(
    networks: Sequence[TunedModel],
    student: TunedModel,
    options: DataFreeOptions,
    channels: int,
    side: int,
    *,
    seed: int = 0,
    after_epoch: Callable[[int, TunedModel], None] = lambda epoch, student: None,
) -> tuple[TunedModel, Tensor]:
    """Train a student to answer as an ensemble does, on images that a generator makes.

    The student is that of the last epoch: nothing is chosen by test data. Each batch is flipped and shifted by up to
    four pixels as one, where the codes of both papers draw for every image.

    Parameters
    ----------
    networks : sequence of TunedModel
        Of the clients; they stay as they are.
    student : TunedModel
        To start from; a copy is trained.
    options : DataFreeOptions
        Of DENSE, or of Co-Boosting.
    channels, side : int
        Size of the images.
    seed : int
        At least 0; torch's global generator is not drawn from.
    after_epoch : callable
        Is given the number of the epoch, from 1, and the student.

    Returns
    -------
    student : TunedModel
        In evaluation mode.
    weights : Tensor
        (K,) of the networks in the ensemble, in [0, 1].
    """
    ensemble, student, device = Ensemble(networks), copy.deepcopy(student), student.device
    weights = torch.full((ensemble.size,), 1.0 / ensemble.size, device=device)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR
    optimizer = torch.optim.SGD(student.parameters(), options.learning_rate, options.momentum)
    schedule = rates(optimizer, options.epochs)
    pool = torch.zeros(0, channels, side, side, dtype=torch.uint8, device=device)
    labels = torch.zeros(0, dtype=torch.int64, device=device)
    for epoch in range(1, options.epochs + 1):
        draw = generator((seed, epoch), _DRAWS)
        wanted = torch.from_numpy(draw.integers(0, student.num_classes, options.batch)).to(device)
        made = _made_images(ensemble, student, weights, wanted, options, (channels, side), draw)
        pool, labels = torch.cat([pool, (255 * made).round().to(torch.uint8)]), torch.cat([labels, wanted])
        order = torch.from_numpy(draw.permutation(len(pool))).to(device).split(options.batch)  # type: ignore[no-untyped-call]
        if options.weight_step and epoch > 1:
            batches = ((normalised(pool[chosen] / 255.0), labels[chosen]) for chosen in order)
            weights = moved_weights(ensemble, weights, batches, options.weight_step * 0.99**epoch)
        student.train()
        for chosen in order:
            inputs = normalised(_augmented(pool[chosen] / 255.0, draw))
            inputs = _disturbed(ensemble, weights, inputs, options, draw)
            with torch.no_grad():
                teacher = ensemble.logits(inputs, weights)
            optimizer.zero_grad()
            divergence(teacher, student(inputs), options.temperature).mean().backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(student.parameters(), 10.0)
            optimizer.step()
        student.eval()
        schedule.step()
        after_epoch(epoch, student)
    return student, weights


def moved_weights(ensemble: Ensemble, weights: Tensor, batches: Iterator[tuple[Tensor, Tensor]], step: float) -> Tensor:
    """Move each weight by a step against its gradient's sign for every batch, and keep it in [0, 1]."""
    moved = weights.clone()
    for inputs, labels in batches:
        own = moved.clone().requires_grad_()
        loss = F.cross_entropy(ensemble.logits(inputs, own), labels)
        (gradient,) = torch.autograd.grad(loss, own, materialize_grads=True, allow_unused=True)  # none if all are 0
        moved = (moved - step * gradient.sign()).clamp(0.0, 1.0)
    return moved


def _made_images(
    ensemble: Ensemble,
    student: TunedModel,
    weights: Tensor,
    labels: Tensor,
    options: DataFreeOptions,
    size: tuple[int, int],
    draw: np.random.Generator,
) -> Tensor:
    """Return the images of the step with the least loss, of a generator that is trained for them alone."""
    drawn = torch.from_numpy(draw.standard_normal((len(labels), options.noise_size))).float()
    noise = drawn.to(labels.device).requires_grad_()
    made = ImageGenerator(options.noise_size, options.width, *size, draw).to(labels.device)
    optimizer = torch.optim.Adam([*made.parameters(), noise], 1e-3, betas=(0.5, 0.999))
    best = torch.zeros(len(labels), size[0], size[1], size[1], device=labels.device)
    least = torch.full((), math.inf, device=labels.device)
    for _ in range(options.steps):
        images = made(noise)
        inputs = normalised(images)
        teacher, distance = ensemble.logits_and_distance(inputs, weights)
        loss = generator_loss(teacher, student(inputs), labels, options) + options.batch_norm * distance
        found = loss.detach()
        best, least = torch.where(found < least, images.detach(), best), torch.minimum(found, least)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(made.parameters(), 10.0)
        optimizer.step()
    return best


def _augmented(images: Tensor, draw: np.random.Generator) -> Tensor:
    side, (down, right, flip) = images.shape[-1], draw.integers(0, (9, 9, 2)).tolist()
    moved = F.pad(images, (4, 4, 4, 4))[..., down : down + side, right : right + side]
    return moved.flip(-1) if flip else moved


def _disturbed(
    ensemble: Ensemble, weights: Tensor, inputs: Tensor, options: DataFreeOptions, draw: np.random.Generator
) -> Tensor:
    """Move pixels by the sign of the gradient of a random combination of the ensemble's probabilities."""
    if not options.disturbance:
        return inputs
    inputs = inputs.detach().requires_grad_()
    chances = F.softmax(ensemble.logits(inputs, weights) / options.temperature, dim=1)
    signs = torch.from_numpy(draw.uniform(-1.0, 1.0, chances.shape)).float().to(inputs.device)
    (gradient,) = torch.autograd.grad((signs * chances).sum(), inputs)
    return (inputs + options.disturbance * gradient.sign()).detach()
