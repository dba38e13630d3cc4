"""A network and its linear head in training: the trained tensors are sent, all others are fixed."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.base.listing import first_few
from fedstats_app.base.threads import threads_worth
from fedstats_app.heads import LinearHead
from fedstats_app.statistics.specification import SampleRequest
from fedstats_app.training.training_options import LocalOptions

Tune = Literal["full", "probe", "features"]


@dataclass(frozen=True)
class TrainingRequest(SampleRequest):
    """Settings with which a client trains or evaluates a :class:`TunedModel`.

    Attributes
    ----------
    options : LocalOptions
        Of the client's own optimiser. Its ``proximal_mu`` is not sent: Flower's FedProx does that.
    """

    tune: Tune = "probe"
    options: LocalOptions = field(default_factory=LocalOptions)
    temperature: float = 1.0
    tune_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tune not in get_args(Tune):
            raise ValueError(f"tune must be one of {', '.join(get_args(Tune))}, got {self.tune!r}")
        if not 0.0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be a positive number, got {self.temperature}")


class _Head(nn.Module):
    """A linear layer that starts from given values instead of drawing from torch's global generator."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.num_classes, self.num_features = weight.shape
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, features: Tensor) -> Tensor:
        weight = self.weight
        return F.linear(features.to(weight.dtype), weight, self.bias)


class TunedModel(nn.Module):
    """Inputs or features in, logits out, in float32 (or what ``to`` makes of it); some of its parameters are trained.

    Every layer runs as in evaluation, also while training. Dropout and stochastic depth would draw from torch's global
    generator, which no key decides, and the head was solved on features without. BatchNorm uses and keeps the running
    statistics of the start; its weight and bias are trained.

    Parameters
    ----------
    head : LinearHead or tuple of Tensor
        To start from; as it travels, weight (C, D) and bias (C,), finite. A LinearHead's infinite bias of an absent
        class becomes 0, as it is in the heads without a bias: with -inf, a sample of that class has an infinite loss,
        and differences of models are NaN.
    backbone : nn.Module, optional
        From (B, ...) inputs to (B, d) features; copied, so that the given one never changes. Without, the inputs are
        features, and only the head can be trained.
    tune : {"full", "probe", "features"}
        Train backbone and head, the head only, or the backbone under a fixed head.
    tune_bias : bool
        True if a trained head's bias is trained.
    temperature : float
        Logits are divided by it (Fed3R+FT: 0.1).

    Attributes
    ----------
    backbone : nn.Module or None
        The copy, tuned.
    head : nn.Module
        With float32 parameters weight (C, D) and bias (C,).

    Raises
    ------
    ValueError
        If an option has another value, or without a backbone anything but the head is to be trained.
    """

    def __init__(
        self,
        head: LinearHead | tuple[Tensor, Tensor],
        *,
        backbone: nn.Module | None = None,
        tune: Tune,
        tune_bias: bool = True,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        if backbone is None and tune != "probe":
            raise ValueError(f"without a backbone the inputs are features: tune must be probe, got {tune!r}")
        self.tune, self.temperature = tune, temperature
        self.backbone = None if backbone is None else copy.deepcopy(backbone).float()
        if self.backbone is not None:
            self.backbone.requires_grad_(tune != "probe")
        self.head = _Head(*_finite_float32(head)).to(_device_of(self.backbone))
        self.head.weight.requires_grad_(tune != "features")
        self.head.bias.requires_grad_(tune != "features" and tune_bias)
        self.eval()

    @classmethod
    def of(cls, request: TrainingRequest, head: LinearHead | tuple[Tensor, Tensor], backbone: nn.Module) -> Self:
        """Return the model of a request; a probe is the head alone, on features."""
        return cls(
            head,
            backbone=None if request.tune == "probe" else backbone,
            tune=request.tune,
            tune_bias=request.tune_bias,
            temperature=request.temperature,
        )

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.head.weight.device

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return self.head.num_classes

    def threads(self, num_samples: int) -> AbstractContextManager[None]:
        """Keep torch on one thread for what a head alone does with the features of few samples."""
        return threads_worth(num_samples * self.head.num_features) if self.backbone is None else nullcontext()

    def train(self, mode: bool = True) -> Self:
        """Do nothing: all layers run as in evaluation."""
        return super().train(False)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features (B, D) that the head sees, without a gradient if the backbone is frozen.

        Inputs are (B, ...) on the model's device; a ValueError says if features do not have the head's dimension.
        """
        features = inputs
        if self.backbone is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.tune != "probe"):
                features = self.backbone(inputs)
        expected = (len(inputs), self.head.num_features)
        if tuple(features.shape) != expected:
            raise ValueError(f"the head takes features {expected}, got {tuple(features.shape)}")
        return features

    def logits(self, features: Tensor) -> Tensor:
        """Return (B, C) logits of (B, D) features, divided by the temperature."""
        logits: Tensor = self.head(features)
        return logits / self.temperature

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (B, C) logits of (B, ...) inputs, divided by the temperature."""
        return self.logits(self.features(inputs))

    def trained_state(self) -> dict[str, Tensor]:
        """Return all trained tensors, sorted by name.

        They are float32 copies on the CPU, called "head.weight", "head.bias" and "backbone.NAME".
        """
        return {
            name: tensor.detach().to("cpu", torch.float32, copy=True, memory_format=torch.contiguous_format)
            for name, tensor in self._trained().items()
        }

    def load_trained_state(self, state: Mapping[str, Tensor]) -> None:
        """Load the :meth:`trained_state` of a model with the same parameters.

        A ValueError names tensors that are missing, unknown or of another shape; the model is then unchanged.
        """
        own = self._trained()
        if missing := sorted(own.keys() - state.keys()):
            raise ValueError(f"the trained state lacks {first_few(missing)}")
        if unknown := sorted(state.keys() - own.keys()):
            raise ValueError(f"the trained state has {first_few(unknown)}, which this model does not train")
        for name, tensor in own.items():
            if state[name].shape != tensor.shape:
                raise ValueError(f"{name} must have shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def to_head(self, present: Tensor | None = None) -> LinearHead:
        """Return the head in float64 on the CPU, without the temperature, on which no prediction depends.

        Rows of classes that are not present, (C,) bool, are kept too; by default all are present.
        """
        weight, bias = (tensor.detach().to("cpu", torch.float64) for tensor in (self.head.weight, self.head.bias))
        return LinearHead(weight, bias) if present is None else LinearHead(weight, bias, present.cpu())

    def _trained(self) -> dict[str, Tensor]:
        return {name: value for name, value in sorted(self.named_parameters()) if value.requires_grad}


def _finite_float32(head: LinearHead | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    if isinstance(head, tuple):
        weight, bias = head
        if bias.shape != weight.shape[:1] or not all(bool(tensor.isfinite().all()) for tensor in head):
            raise ValueError(f"a head's weight (C, d) and bias (C,) must be finite, got a bias {tuple(bias.shape)}")
    else:
        weight, bias = head.weight, head.bias.masked_fill(~head.present & ~head.bias.isfinite(), 0.0)
    return weight.detach().to(torch.float32, copy=True), bias.detach().to(torch.float32, copy=True)


def _device_of(module: nn.Module | None) -> torch.device | None:
    """Return the device of a network, None if it has no parameters."""
    return None if module is None else next((parameter.device for parameter in module.parameters()), None)
