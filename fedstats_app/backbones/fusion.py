"""Batch normalisation folded into the convolutions before it, for networks that are no longer trained."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fedstats_app.backbones.engine import BOUND, EngineError


class _Tracer(fx.Tracer):
    """Takes every convolution for one step: those of TensorFlow's padding look at the size of the image."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Conv2d) or super().is_leaf_module(m, module_qualified_name)


def fused(module: nn.Module, probes: Tensor) -> nn.Module:
    """Return a network that does the same with fewer steps.

    Parameters
    ----------
    module : nn.Module
        In eval mode, on the CPU; it is not changed.
    probes : Tensor
        (B, ...) inputs on which both must agree.

    Raises
    ------
    EngineError
        If its steps cannot be traced, no batch normalisation follows a convolution, or features differ from the
        module's by more than ``BOUND`` of their length.
    """
    try:
        root = copy.deepcopy(module)
        network = fx.GraphModule(root, _Tracer().trace(root))
    except Exception as error:  # whatever a stranger's network does when it is traced
        first = str(error).strip().partition("\n")[0]
        raise EngineError(f"this network cannot be traced ({type(error).__name__}: {first:.200})") from error
    number = _fold(network)
    if not number:
        raise EngineError("this network has no batch normalisation right after a convolution")
    with torch.inference_mode():
        expected, made = module(probes), network(probes)
    lengths = torch.linalg.vector_norm(expected, dim=1)
    largest = float((torch.linalg.vector_norm(made - expected, dim=1) / lengths).max())
    if not largest <= BOUND:
        raise EngineError(f"features differ from the unchanged network's by {largest:.1e}, more than {BOUND:.0e}")
    return network


def _fold(network: fx.GraphModule) -> int:
    """Fold what can be folded, in place, and return how many."""
    modules: dict[Any, nn.Module] = dict(network.named_modules())
    calls = Counter(node.target for node in network.graph.nodes if node.op == "call_module")
    number = 0
    for node in list(network.graph.nodes):
        before = node.args[0] if node.args else None
        if node.op != "call_module" or not isinstance(before, fx.Node) or before.op != "call_module":
            continue
        norm, convolution = modules[node.target], modules[before.target]
        # Whose output something else reads, too, or what runs twice, must stay as it is.
        alone = len(before.users) == 1 and calls[node.target] == calls[before.target] == 1
        # Not their subclasses: timm's batch normalisation has an activation in it.
        if not alone or type(norm) is not nn.BatchNorm2d or not isinstance(convolution, nn.Conv2d):
            continue
        if norm.running_mean is None:
            continue
        network.set_submodule(str(before.target), fuse_conv_bn_eval(convolution, norm))
        node.replace_all_uses_with(before)
        network.graph.erase_node(node)
        number += 1
    network.delete_all_unused_submodules()
    network.recompile()
    return number
