"""Low-rank adapters (LoRA, Hu et al., ICLR 2022) in a backbone, the same on every node; needs the extra ``text``."""

from __future__ import annotations

import importlib
import math
from typing import Any

import torch
from torch import nn

from fedstats_app.fedmezo.directions import Directions

# What transformers calls the projections to queries and values, in which Hu et al. put their adapters. Where one layer
# makes queries, keys and values, it is that one.
_QUERY_AND_VALUE = frozenset(
    {"query", "value", "query_proj", "value_proj", "q_proj", "v_proj", "q_lin", "v_lin", "q", "v"}
    | {"c_attn", "query_key_value", "qkv_proj", "Wqkv"}
)


def add_lora(module: nn.Module, *, rank: int = 8, alpha: float = 16.0) -> tuple[str, ...]:
    """Add adapters to some layers of a network, in place; at first they change nothing of what it computes.

    They go to the projections to queries and values as transformers calls them, and where there are none to every
    nn.Linear.

    A layer's output x W^T becomes x W^T + (alpha / rank) x A^T B^T with A (rank, inputs) and B (outputs, rank). B is 0,
    and A is N(0, 1/(3 inputs)), which is the variance of peft's own start; but drawn from the layer's
    name, not from torch's generator.

    Parameters
    ----------
    module : nn.Module
        A backbone's network.
    rank : int
        Of the adapters.
    alpha : float
        Their scale, times the rank.

    Returns
    -------
    tuple of str
        Names of the layers that got an adapter. Its parameters are called NAME.lora_A.default.weight and lora_B.

    Raises
    ------
    ModuleNotFoundError
        If peft is not installed.
    ValueError
        If no layer is linear.
    """
    names = _targets(module)
    _inject(_peft(), module, names, rank, alpha)
    _draw(module)
    _leave_fast_path(module)
    return names


def merge_lora(module: nn.Module) -> None:
    """Add the adapters to the weights of their layers and take them out, in place: the plain architecture is left.

    Parameters
    ----------
    module : nn.Module
        With adapters of :func:`add_lora`, or without.
    """
    for name, layer in list(module.named_modules()):
        if hasattr(layer, "base_layer") and hasattr(layer, "merge"):
            layer.merge()
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, layer.get_base_layer())


def _peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("LoRA needs peft: pip install 'fedstats-app[text]'") from error


def _targets(module: nn.Module) -> tuple[str, ...]:
    # nn.MultiheadAttention reads the weight of its output projection without calling it: an adapter would not act.
    unreachable = {
        f"{name}.{child}".removeprefix(".")
        for name, layer in module.named_modules()
        if isinstance(layer, nn.MultiheadAttention)
        for child, _ in layer.named_children()
    }
    layers = {name: layer for name, layer in module.named_modules() if name and name not in unreachable}
    found = [name for name in layers if name.rpartition(".")[2] in _QUERY_AND_VALUE]
    found = found or [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    if not found:
        raise ValueError("LoRA needs a layer of nn.Linear, got none")
    return tuple(found)


def _inject(peft: Any, module: nn.Module, names: tuple[str, ...], rank: int, alpha: float) -> None:
    pattern = "|".join(name.replace(".", r"\.") for name in names)  # a list would also match the ends of other names
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=f"({pattern})", lora_dropout=0.0, bias="none")
    with torch.random.fork_rng(devices=[]):  # peft draws a start of its own
        peft.inject_adapter_in_model(config, module)


def _draw(module: nn.Module) -> None:
    dtype = next(parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    for name, parameter in module.named_parameters():
        if "lora_" not in name:
            continue
        parameter.data = torch.zeros_like(parameter, dtype=dtype, memory_format=torch.contiguous_format)
        if ".lora_A." in name:
            scale = 1 / math.sqrt(3 * parameter[0].numel())
            flat = parameter.data.view(-1)
            for positions, values in Directions("gaussian").blocks(0, 0, f"start of {name}", len(flat)):
                flat[positions] = (values * scale).to(flat)


def _leave_fast_path(module: nn.Module) -> None:
    """Have layers of nn.TransformerEncoder call the adapted layers: its fast path would read the bare weights."""
    for layer in module.modules():
        adapted = any("lora_" in name for name, _ in layer.named_parameters())
        if adapted and isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0
        elif adapted and isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False
