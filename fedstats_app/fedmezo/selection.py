"""Which parameters are tuned, by name, and where the model holds them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor, nn

from fedstats_app.fedmezo.directions import flat

# Modules with their own names for the parameters that they hold, and the model's names for those.
Holders = list[tuple[nn.Module, dict[str, str]]]

_HEAD = "head."
_BY_NAME = "names:"


def tuned_names(model: nn.Module, what: str) -> tuple[str, ...]:
    """Choose the parameters that are tuned, and let only them require a gradient.

    Parameters
    ----------
    model : nn.Module
        Its head, if it has one, is the module ``head``.
    what : str
        "full": all. "head": the head's. "bias", "norm", "lora": the head's, and those whose name ends in ``.bias``,
        those of normalisation layers, or those that LoRA added. "names:GLOB,GLOB": those whose name matches one of
        the patterns, in which ``*`` also stands for dots.

    Returns
    -------
    tuple of str
        In the order of ``named_parameters()``.

    Raises
    ------
    ValueError
        If ``what`` is something else, or nothing matches; the model is then as it was.
    """
    every = [name for name, _ in model.named_parameters()]
    if what.startswith(_BY_NAME):
        chosen = _matching(every, [pattern.strip() for pattern in what.removeprefix(_BY_NAME).split(",")])
    elif what in _KINDS:
        chosen = _KINDS[what](model, every)
    else:
        raise ValueError(f"what is tuned must be one of {', '.join(_KINDS)} or names:PATTERN, got {what!r}")
    if not chosen:
        raise ValueError(f"the model has nothing to tune by {what!r}; its parameters are {_some(every)}")
    if what not in ("full", "head") and not what.startswith(_BY_NAME):
        chosen |= {name for name in every if name.startswith(_HEAD)}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen)
    return tuple(name for name in every if name in chosen)


def tunable(model: nn.Module, names: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """Return parameters by name.

    Raises
    ------
    ValueError
        If there is no name, a name is unknown, or a parameter cannot be tuned.
    """
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


def holders(model: nn.Module, parameters: dict[str, nn.Parameter]) -> Holders:
    """Return the modules that hold one of the parameters, each with its names for them and the model's."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    found = []
    for module in model.modules():
        held = {key: names[id(value)] for key, value in module._parameters.items() if id(value) in names}
        if held:
            found.append((module, held))
    return found


def num_bytes(parameters: Mapping[str, Tensor], names: Iterable[str]) -> int:
    """Return the bytes of some parameters."""
    return sum(parameters[name].numel() * parameters[name].element_size() for name in names)


def _matching(every: list[str], patterns: list[str]) -> set[str]:
    matches = {pattern: set(fnmatch.filter(every, pattern)) for pattern in patterns}
    if useless := [pattern for pattern, found in matches.items() if not found]:
        raise ValueError(f"no parameter is called {useless[0]!r}; the model's are {_some(every)}")
    return set().union(*matches.values())


def _in_normalisation(model: nn.Module, _: list[str]) -> set[str]:
    layers = [(name, layer) for name, layer in model.named_modules() if "norm" in type(layer).__name__.lower()]
    return {f"{name}.{key}" for name, layer in layers for key, _ in layer.named_parameters(recurse=False)}


_KINDS: dict[str, Callable[[nn.Module, list[str]], set[str]]] = {
    "full": lambda _, every: set(every),
    "head": lambda _, every: {name for name in every if name.startswith(_HEAD)},
    "bias": lambda _, every: {name for name in every if name.endswith(".bias") and not name.startswith(_HEAD)},
    "norm": _in_normalisation,
    "lora": lambda _, every: {name for name in every if "lora_" in name},
}


def _some(names: list[str]) -> str:
    """Show the first and the last names, between which most networks repeat themselves."""
    return ", ".join(names) if len(names) <= 8 else ", ".join([*names[:4], "...", *names[-4:]])
