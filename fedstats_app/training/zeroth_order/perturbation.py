"""A model evaluated at theta + epsilon z and at theta - epsilon z, of which theta itself never learns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.weak import TensorWeakRef

from fedstats_app.training.zeroth_order.perturbed import Probe, flat

How = Literal["auto", "read", "copy"]

# "auto" copies where that takes no more than this, or hardly more than "read" does for the largest module.
_SMALL_COPY = 2**20
_COPY_OVER_LARGEST_MODULE = 1.1
# Of the check: so large that a parameter that is missed shows in the logits in every dtype.
_CHECK_EPSILON = 2.0**-4


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
    model : nn.Module
        As given.
    names : tuple of str
        As given.
    how : {"read", "copy"}
        What is done.

    Raises
    ------
    ValueError
        If there is no name, a name is unknown, or a parameter cannot be tuned.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], *, how: How = "auto") -> None:
        if how not in get_args(How):
            raise ValueError(f"how must be one of {', '.join(get_args(How))}, got {how!r}")
        self.model, self.names = model, tuple(names)
        self._parameters = _find(model, self.names)
        self._holders = _holders(model, self._parameters)
        self.how: Literal["read", "copy"] = self._choose() if how == "auto" else how
        floating = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
        self._device, self._dtype = floating[0].device, floating[0].dtype
        self._probe: tuple[Probe, int] | None = None
        self._ready = False
        self._alive: dict[str, TensorWeakRef] = {}

    @property
    def copy_bytes(self) -> int:
        """Bytes of all perturbed parameters: what "copy" takes beside theta."""
        return sum(_num_bytes(parameter) for parameter in self._parameters.values())

    @property
    def module_bytes(self) -> int:
        """Bytes of those that one module holds, the largest: about what "read" takes beside theta."""
        return max(
            sum(_num_bytes(self._parameters[name]) for name in set(names.values())) for _, names in self._holders
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._device

    @contextlib.contextmanager
    def at(self, probe: Probe, sign: int) -> Iterator[None]:
        """Put the model at theta + sign * epsilon * z; afterwards, whatever happens, it is at theta.

        Parameters
        ----------
        probe : Probe
            Direction and distance.
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
        if self._probe is not None:
            raise RuntimeError("the model is perturbed already")
        was_training = self.model.training
        self.model.eval()
        self._probe = probe, sign
        try:
            with self._reading() if self.how == "read" else self._copied():
                yield
        finally:
            self._probe = None
            self._alive.clear()
            self.model.train(was_training)

    @contextlib.contextmanager
    def at_theta(self) -> Iterator[None]:
        """Evaluate the model as it is, in evaluation mode.

        Raises
        ------
        RuntimeError
            If the model is perturbed.
        """
        if self._probe is not None:
            raise RuntimeError("the model is perturbed already")
        was_training, self._ready = self.model.training, True
        self.model.eval()
        try:
            yield
        finally:
            self._ready = False
            self.model.train(was_training)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logits of a batch, within :meth:`at` or :meth:`at_theta`.

        Parameters
        ----------
        inputs : Tensor
            Moved to the model's device and, if floating, to its dtype.

        Raises
        ------
        RuntimeError
            Outside of both.
        """
        if self._probe is None and not self._ready:
            raise RuntimeError("the model is not perturbed: call within at()")
        dtype = self._dtype if inputs.is_floating_point() else inputs.dtype
        with torch.no_grad():
            logits: Tensor = self.model(inputs.to(self._device, dtype))
        return logits

    def check(self, inputs: Tensor) -> str:
        """Compare, on a small batch, "read" with a fully perturbed copy; where they differ, go over to "copy".

        Both run the same kernels on the same numbers, so they must agree to the bit. Where the copy itself does not
        when it is run twice (a GPU may add in any order), up to ten times that difference is allowed.

        Parameters
        ----------
        inputs : Tensor
            A batch of at least one.

        Returns
        -------
        str
            What is done and why, in a sentence, if they differ; else "".

        Raises
        ------
        ValueError
            Without inputs.
        """
        if not len(inputs):
            raise ValueError("the check needs at least one input, got none")
        if self.how == "copy":
            return ""
        read = self._check_logits(inputs, "read")
        copied, again = self._check_logits(inputs, "copy"), self._check_logits(inputs, "copy")
        difference, noise = float((read - copied).abs().max()), float((again - copied).abs().max())
        if difference <= 10 * noise:  # also where both are 0, and not where one is no number
            self.how = "read"
            return ""
        return (
            f"this model does not read its parameters as attributes of its modules: perturbed so, its logits differ by "
            f"{difference:.3g} from those of a perturbed copy. All {len(self.names)} tuned parameters are copied, "
            f"which takes {self.copy_bytes / 1e6:.1f} MB instead of {self.module_bytes / 1e6:.1f} MB"
        )

    def _check_logits(self, inputs: Tensor, how: Literal["read", "copy"]) -> Tensor:
        self.how = how
        with self.at(Probe(0, 0, _CHECK_EPSILON), 1):
            return self(inputs).to("cpu", torch.float64)

    def _choose(self) -> Literal["read", "copy"]:
        allowed = max(_SMALL_COPY, _COPY_OVER_LARGEST_MODULE * self.module_bytes)
        return "copy" if self.copy_bytes <= allowed else "read"

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        kept = [(module, module._parameters) for module, _ in self._holders]
        try:
            for module, names in self._holders:
                module.__dict__["_parameters"] = _Reader(module._parameters, names, self._read)
            yield
        finally:
            for module, parameters in kept:
                module.__dict__["_parameters"] = parameters

    @contextlib.contextmanager
    def _copied(self) -> Iterator[None]:
        kept = [(parameter, parameter.data, parameter.requires_grad) for parameter in self._parameters.values()]
        try:
            for name, parameter in self._parameters.items():
                parameter.data = self._perturb(parameter, name)
                parameter.requires_grad_(False)  # as in "read": torch chooses other kernels for what requires one
            yield
        finally:
            for parameter, theta, requires_grad in kept:
                parameter.data = theta
                parameter.requires_grad_(requires_grad)

    def _read(self, parameter: nn.Parameter, name: str) -> Tensor:
        # Code that reads a parameter twice while it uses it gets the same tensor.
        alive = self._alive[name]() if name in self._alive else None
        if alive is None:
            alive = self._perturb(parameter, name)
            self._alive[name] = TensorWeakRef(alive)
        return alive

    def _perturb(self, parameter: nn.Parameter, name: str) -> Tensor:
        if self._probe is None:
            raise RuntimeError("the model is not perturbed")
        probe, sign = self._probe
        return probe.perturbed(parameter, name, sign)


class _Reader(dict[str, nn.Parameter | None]):
    """The parameters of one module; perturbed by ``[]``, which is how nn.Module reads an attribute, and only by that.

    Parameters
    ----------
    parameters : dict
        The module's.
    names : dict
        From the names in the module to those in the model, of the perturbed ones.
    read : callable
        From a parameter and its name in the model to what is to be used.
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


def _find(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Parameter]:
    parameters = dict(model.named_parameters())
    if not names:
        raise ValueError("at least one parameter must be perturbed, got no name")
    if unknown := [name for name in names if name not in parameters]:
        raise ValueError(f"the model has no parameter {unknown[0]!r}; it has {', '.join(list(parameters)[:3])}, ...")
    for name in names:
        try:
            flat(parameters[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return {name: parameters[name] for name in names}


def _holders(model: nn.Module, parameters: dict[str, nn.Parameter]) -> list[tuple[nn.Module, dict[str, str]]]:
    """Return the modules that hold one of the parameters, each with its names for them and the model's."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    holders = []
    for module in model.modules():
        held = {key: names[id(value)] for key, value in module._parameters.items() if id(value) in names}
        if held:
            holders.append((module, held))
    return holders


def _num_bytes(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()
