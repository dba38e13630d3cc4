"""A model at theta + epsilon z and at theta - epsilon z, its loss there, and the loss's curvature."""

from __future__ import annotations

import contextlib
import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import TensorWeakRef

from fedstats_app.fedmezo.directions import Probe, flat
from fedstats_app.statistics.accumulation import check_labels
from fedstats_app.training.local import Diverged
from fedstats_app.training.samples import Samples, reproducible_kernels


def tuned_names(model: nn.Module, part: str) -> tuple[str, ...]:
    """Choose the parameters that are tuned, in their order in the model, and let only them require a gradient.

    Parameters
    ----------
    model : nn.Module
        Its head, if it has one, is the module ``head``.
    part : str
        "full": all. "head": the head's. "bias", "norm": the head's, and those whose name ends in ``.bias``, or
        those of normalisation layers. "names:GLOB,GLOB": those whose name matches one of the patterns, in which ``*``
        also stands for dots. If it is something else, or nothing matches, a ValueError leaves the model as it was.
    """
    every = [name for name, _ in model.named_parameters()]
    head = {name for name in every if name.startswith("head.")}
    norms = [(name, layer) for name, layer in model.named_modules() if "norm" in type(layer).__name__.lower()]
    parts = {
        "full": set(every),
        "head": head,
        "bias": {name for name in every if name.endswith(".bias")} - head,
        "norm": {f"{name}.{key}" for name, layer in norms for key, _ in layer.named_parameters(recurse=False)},
    }
    if part.startswith("names:"):
        chosen: set[str] = set()
        for pattern in part.removeprefix("names:").split(","):
            if not (matches := fnmatch.filter(every, pattern.strip())):
                raise ValueError(f"no parameter is called {pattern.strip()!r}; the model's are {_some(every)}")
            chosen.update(matches)
    elif part in parts:
        chosen = parts[part]
    else:
        raise ValueError(f"the tuned part must be one of {', '.join(parts)} or names:PATTERN, got {part!r}")
    if not chosen:
        raise ValueError(f"the model has nothing to tune by {part!r}; its parameters are {_some(every)}")
    if part in ("bias", "norm"):
        chosen |= head
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return tuple(name for name in every if name in chosen)


def tunable(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Parameter]:
    """Return parameters by name; a ValueError refuses no names, unknown ones, and parameters that cannot be tuned."""
    parameters = dict(model.named_parameters())
    chosen = {name: parameters[name] for name in names if name in parameters}
    if not chosen or len(chosen) < len(tuple(names)):
        raise ValueError(f"the tuned part must be parameters of the model, {_some(list(parameters))}, got {[*names]}")
    for name, parameter in chosen.items():
        try:
            flat(parameter)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return chosen


def _some(names: list[str]) -> str:
    """Show the first and the last names, between which most networks repeat themselves."""
    return ", ".join(names) if len(names) <= 8 else ", ".join([*names[:4], "...", *names[-4:]])


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
        "auto" means "copy" if all perturbed parameters together are small (1 MiB) or hardly larger than those of the
        largest module (1.1 times), else "read".

    Attributes
    ----------
    how : {"read", "copy"}
        The method in use.
    copy_bytes, module_bytes : int
        Memory beside theta: of "copy", all perturbed parameters; of "read", roughly those of the largest module.

    Raises
    ------
    ValueError
        As :func:`tunable`.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], *, how: How = "auto") -> None:
        self.model, self.names = model, tuple(names)
        self._parameters = tunable(model, self.names)
        # Modules with their own names for the parameters that they hold, and the model's names for those.
        own = {id(parameter): name for name, parameter in self._parameters.items()}
        held = [
            (module, {key: own[id(value)] for key, value in module._parameters.items() if id(value) in own})
            for module in model.modules()
        ]
        self._holders = [(module, of_module) for module, of_module in held if of_module]
        num_bytes = {name: value.numel() * value.element_size() for name, value in self._parameters.items()}
        self.copy_bytes = sum(num_bytes.values())
        self.module_bytes = max(sum(num_bytes[name] for name in set(names.values())) for _, names in self._holders)
        small = self.copy_bytes <= max(_SMALL_COPY, _COPY_OVER_LARGEST_MODULE * self.module_bytes)
        self.how: Literal["read", "copy"] = ("copy" if small else "read") if how == "auto" else how
        floating = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
        self.device, self.dtype = floating[0].device, floating[0].dtype
        self._alive: dict[str, TensorWeakRef] = {}

    @contextlib.contextmanager
    def at(self, probe: Probe | None, sign: int = 1) -> Iterator[None]:
        """Put the model at theta + sign * epsilon * z; afterwards, whatever happens, and without a probe at theta."""
        was_training = self.model.training
        self.model.eval()
        try:
            if probe is None:
                yield
            else:
                with self._reading(probe, sign) if self.how == "read" else self._copied(probe, sign):
                    yield
        finally:
            self._alive.clear()
            self.model.train(was_training)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch, moved to the model's device and, if floating, dtype; only within :meth:`at`."""
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

    ``names`` maps names in the module to those in the model, and ``read`` these to the perturbed tensor.
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
    """Return the mean cross-entropy in nats of all samples at theta + sign * epsilon * z, or without a probe at theta.

    The samples' losses are computed in float64 from logits of the model's dtype and added exactly.

    Parameters
    ----------
    perturbation : Perturbation
        Of a model from a batch of inputs to (b, C) logits.
    samples : Samples
        At least one, with labels in [0, C), or a ValueError. All of them are one batch: only so does every sample of a
        federation have the same weight, wherever it is.
    batch_size : int
        Samples per forward pass, which decides memory and speed and changes the last bits only.
    probe, sign
        As :meth:`Perturbation.at`.
    """
    num_examples = len(samples.labels)
    if not num_examples:
        raise ValueError("a loss needs at least one sample, got none")
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

    Two forward passes over all samples per direction; parameters and errors as :func:`mean_loss`, and Diverged if a
    loss is not finite.
    """

    def loss(probe: Probe, sign: int) -> float:
        value = mean_loss(perturbation, samples, batch_size, probe, sign)
        if not math.isfinite(value):
            side = f"theta {'+' if sign > 0 else '-'} {probe.epsilon} z"
            raise Diverged(f"direction {probe.index}, seed {probe.seed}: the loss at {side} is {value}")
        return value

    return tuple((loss(probe, 1) - loss(probe, -1)) / (2 * probe.epsilon) for probe in probes)


# So large that a parameter that is missed shows in the logits in every dtype.
_CHECK_EPSILON = 2.0**-4

# Of the curvature, times epsilon: second differences lose twice the digits that first ones lose.
DISTANCE = 8.0

# If the loss looks straight within it, the distance grows by this factor, at most this many times.
WIDER, WIDENINGS = 4.0, 8
# Of the loss, in roundings: smaller second differences may be those of rounded parameters. In float32 these reach a
# tenth of it, measured on heads that are 4 to 4,096 times too sure.
_NOISE = 32


def check_reading(perturbation: Perturbation, inputs: Tensor) -> str:
    """Compare, on a small batch, "read" with a fully perturbed copy; if they differ, change to "copy" and say so.

    Both run the same kernels on the same numbers, so they must agree to the bit. If the copy itself does not
    when it is run twice (a GPU may add in any order), up to ten times that difference is allowed.
    """
    if perturbation.how == "copy":
        return ""
    read = _logits(perturbation, inputs, "read")
    copied, again = _logits(perturbation, inputs, "copy"), _logits(perturbation, inputs, "copy")
    difference, noise = float((read - copied).abs().max()), float((again - copied).abs().max())
    if difference <= 10 * noise:  # True if both are 0, False if one is not a number
        perturbation.how = "read"
        return ""
    return (
        f"this model does not read its parameters as attributes of its modules: perturbed so, its logits differ by "
        f"{difference:.3g} from those of a perturbed copy. All {len(perturbation.names)} tuned parameters are copied, "
        f"which takes {perturbation.copy_bytes / 1e6:.1f} MB instead of {perturbation.module_bytes / 1e6:.1f} MB"
    )


def _logits(perturbation: Perturbation, inputs: Tensor, how: Literal["read", "copy"]) -> Tensor:
    perturbation.how = how
    with perturbation.at(Probe(0, 0, _CHECK_EPSILON), 1):
        return perturbation(inputs).to("cpu", torch.float64)


def curvatures(
    perturbation: Perturbation, samples: Samples, batch_size: int, probes: Sequence[Probe]
) -> tuple[float, ...]:
    """Return the second derivative of the mean loss along some directions, z' H z, by two forward passes each and one.

    Parameters and errors are those of :func:`projected_gradients`, but it is not finite where a loss is not.

    It is [L(theta + h z) - 2 L(theta) + L(theta - h z)] / h^2 with h = 8 epsilon, exact for a quadratic loss. Its mean
    over directions of independent entries of variance 1 is the trace of the Hessian
    (Hutchinson's estimator), which bounds the step that may be taken along such a direction.

    The loss of a head that is far too sure is almost piecewise linear. Within 8 epsilon its second differences drown in
    rounding, and steps go further than that. So h grows until the bend of the loss can be seen and a step of half of
    1 / curvature stays within h.
    """
    middle = mean_loss(perturbation, samples, batch_size)
    noise = _NOISE * torch.finfo(perturbation.dtype).eps * middle

    def sides(distance: float) -> tuple[list[float], list[float]]:
        """Return by how much the loss bends, and rises, along each direction."""
        far = [replace(probe, epsilon=distance * probe.epsilon) for probe in probes]
        both = [[mean_loss(perturbation, samples, batch_size, probe, sign) for sign in (1, -1)] for probe in far]
        return [plus - 2 * middle + minus for plus, minus in both], [(plus - minus) / 2 for plus, minus in both]

    distance = DISTANCE
    bends, _ = sides(distance)
    straight = abs(math.fsum(bends)) <= noise * len(bends)  # False if one is not a number
    for widening in range(1, WIDENINGS + 1 if straight else 1):
        wider, rises = sides(DISTANCE * WIDER**widening)
        bend, rise = math.fsum(wider), math.sqrt(math.fsum(value * value for value in rises) * len(rises))
        if not math.isfinite(bend):
            break
        bends, distance = wider, DISTANCE * WIDER**widening
        if bend > noise * len(bends) and 2.0 * bend >= rise:
            break
    return tuple(bend / (distance * probe.epsilon) ** 2 for bend, probe in zip(bends, probes, strict=True))
