"""A model at theta + epsilon z and at theta - epsilon z, of which theta itself never learns, and its loss there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import TensorWeakRef

from fedstats_app.fedmezo.directions import Probe
from fedstats_app.fedmezo.selection import Holders, holders, num_bytes, tunable
from fedstats_app.training.local import Diverged
from fedstats_app.training.samples import Samples, check_labels, reproducible_kernels

How = Literal["auto", "read", "copy"]

# "auto" copies where that takes no more than this, or hardly more than "read" does for the largest module.
_SMALL_COPY = 2**20
_COPY_OVER_LARGEST_MODULE = 1.1


class Perturbation:
    """Evaluates a model at perturbed parameters.

    "read": where a module reads one of its parameters as an attribute, it gets a perturbed tensor, which is made then
    and lives as long as it is used; so a step takes the memory of inference and of the module at work. For that the
    mapping in which a module keeps its parameters is replaced by one whose ``[]`` perturbs: the module's class, the
    Parameter objects, their names and order stay what they are, and what lists parameters (``named_parameters``,
    ``state_dict``) sees theta. It works where a module reads what another one holds (nn.MultiheadAttention its output
    projection, the fast path of nn.TransformerEncoderLayer all of a layer) and for tied weights.

    "copy": every perturbed parameter is made once per :meth:`at`, and the Parameter object refers to it meanwhile;
    theta's memory is not touched. It also works for modules that got hold of their parameters in other ways.

    Parameters
    ----------
    model : nn.Module
        From a batch of inputs to (B, C) logits, on any device; it is run in evaluation mode.
    names : sequence of str
        The parameters that are perturbed, as in ``named_parameters()``: a tied one has one name and one direction.
    how : {"auto", "read", "copy"}
        "auto" copies where all perturbed parameters together are small (1 MiB) or hardly larger than those of the
        largest module (1.1 times), and perturbs what is read otherwise.

    Attributes
    ----------
    how : {"read", "copy"}
        What is done.
    copy_bytes, module_bytes : int
        What "copy" takes beside theta, all perturbed parameters; and about what "read" does, those that one module
        holds, the largest.
    device, dtype
        Where the model is, and in what.

    Raises
    ------
    ValueError
        If there is no name, a name is unknown, or a parameter cannot be tuned.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], *, how: How = "auto") -> None:
        if how not in get_args(How):
            raise ValueError(f"how must be one of {', '.join(get_args(How))}, got {how!r}")
        self.model, self.names = model, tuple(names)
        self._parameters = tunable(model, self.names)
        self._holders: Holders = holders(model, self._parameters)
        self.copy_bytes = num_bytes(self._parameters, self._parameters)
        self.module_bytes = max(num_bytes(self._parameters, set(held.values())) for _, held in self._holders)
        small = self.copy_bytes <= max(_SMALL_COPY, _COPY_OVER_LARGEST_MODULE * self.module_bytes)
        self.how: Literal["read", "copy"] = ("copy" if small else "read") if how == "auto" else how
        floating = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
        self.device, self.dtype = floating[0].device, floating[0].dtype
        self._evaluating = False
        self._alive: dict[str, TensorWeakRef] = {}

    @contextlib.contextmanager
    def at(self, probe: Probe | None, sign: int = 1) -> Iterator[None]:
        """Put the model at theta + sign * epsilon * z; afterwards, whatever happens, it is at theta.

        Parameters
        ----------
        probe : Probe or None
            Direction and distance; None for theta itself.
        sign : {-1, 1}
            Which side.

        Raises
        ------
        ValueError
            If the sign is another number.
        RuntimeError
            If the model is perturbed already.
        """
        if sign not in (-1, 1):
            raise ValueError(f"sign must be -1 or 1, got {sign}")
        if self._evaluating:
            raise RuntimeError("the model is perturbed already")
        was_training, self._evaluating = self.model.training, True
        self.model.eval()
        try:
            if probe is None:
                yield
            else:
                with self._reading(probe, sign) if self.how == "read" else self._copied(probe, sign):
                    yield
        finally:
            self._evaluating = False
            self._alive.clear()
            self.model.train(was_training)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch, moved to the model's device and, if floating, dtype; only within :meth:`at`."""
        if not self._evaluating:
            raise RuntimeError("the model is not perturbed: call within at()")
        dtype = self.dtype if inputs.is_floating_point() else inputs.dtype
        with torch.no_grad():
            logits: Tensor = self.model(inputs.to(self.device, dtype))
        return logits

    @contextlib.contextmanager
    def _reading(self, probe: Probe, sign: int) -> Iterator[None]:
        kept = [(module, module._parameters) for module, _ in self._holders]

        def read(parameter: nn.Parameter, name: str) -> Tensor:
            # Code that reads a parameter twice while it uses it gets the same tensor.
            alive = self._alive[name]() if name in self._alive else None
            if alive is None:
                alive = probe.perturbed(parameter, name, sign)
                self._alive[name] = TensorWeakRef(alive)
            return alive

        try:
            for module, names in self._holders:
                module.__dict__["_parameters"] = _Reader(module._parameters, names, read)
            yield
        finally:
            for module, parameters in kept:
                module.__dict__["_parameters"] = parameters

    @contextlib.contextmanager
    def _copied(self, probe: Probe, sign: int) -> Iterator[None]:
        kept = [(parameter, parameter.data, parameter.requires_grad) for parameter in self._parameters.values()]
        try:
            for name, parameter in self._parameters.items():
                parameter.data = probe.perturbed(parameter, name, sign)
                parameter.requires_grad_(False)  # as in "read": torch chooses other kernels for what requires one
            yield
        finally:
            for parameter, theta, requires_grad in kept:
                parameter.data = theta
                parameter.requires_grad_(requires_grad)


class _Reader(dict[str, nn.Parameter | None]):
    """The parameters of one module; perturbed by ``[]``, which is how nn.Module reads an attribute, and only by that.

    ``names`` lead from names in the module to those in the model, ``read`` from there to what is to be used.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter | None],
        names: dict[str, str],
        read: Callable[[nn.Parameter, str], Tensor],
    ) -> None:
        super().__init__(parameters.items())
        self._names, self._read = names, read

    def __getitem__(self, key: str) -> nn.Parameter | None:
        parameter = super().__getitem__(key)
        if parameter is None or key not in self._names:
            return parameter
        return self._read(parameter, self._names[key])  # type: ignore[return-value]  # a plain tensor serves as well


def mean_loss(
    perturbation: Perturbation, samples: Samples, batch_size: int, probe: Probe | None = None, sign: int = 1
) -> float:
    """Return the mean cross-entropy of all samples at theta + sign * epsilon * z, or without a probe at theta.

    Parameters
    ----------
    perturbation : Perturbation
        Of a model from a batch of inputs to (b, C) logits.
    samples : Samples
        At least one, with labels in [0, C). All of them are one batch: only so does every sample of a federation have
        the same weight, wherever it is.
    batch_size : int
        Samples per forward pass, which decides memory and speed and changes the last bits only.
    probe, sign
        As :meth:`Perturbation.at`.

    Returns
    -------
    float
        In nats. The samples' losses are computed in float64 from logits of the model's dtype and added exactly.

    Raises
    ------
    ValueError
        If there are no samples, a label is out of range, or the batch size is below 1.
    """
    num_examples = len(samples.labels)
    if not num_examples:
        raise ValueError("a loss needs at least one sample, got none")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    losses: list[float] = []
    with reproducible_kernels(perturbation.device), perturbation.at(probe, sign):
        for indices in torch.split(torch.arange(num_examples), batch_size):
            labels = samples.labels[indices]
            logits = perturbation(samples.inputs(indices)).to("cpu", torch.float64)
            check_labels(labels, logits.shape[1])
            losses += F.cross_entropy(logits, labels, reduction="none").tolist()
    return math.fsum(losses) / num_examples


def projected_gradients(
    perturbation: Perturbation, samples: Samples, batch_size: int, probes: Sequence[Probe]
) -> tuple[float, ...]:
    """Return (L(theta + epsilon z) - L(theta - epsilon z)) / (2 epsilon) for some directions, theta being the same.

    Two forward passes over all samples per direction; parameters and other errors as :func:`mean_loss`.

    Raises
    ------
    Diverged
        If a loss is not finite.
    """

    def loss(probe: Probe, sign: int) -> float:
        value = mean_loss(perturbation, samples, batch_size, probe, sign)
        if not math.isfinite(value):
            side = f"theta {'+' if sign > 0 else '-'} {probe.epsilon} z"
            raise Diverged(f"direction {probe.index}, seed {probe.seed}: the loss at {side} is {value}")
        return value

    return tuple((loss(probe, 1) - loss(probe, -1)) / (2 * probe.epsilon) for probe in probes)
