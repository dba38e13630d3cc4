"""GroupNorm in place of BatchNorm, for federations whose clients should share no running statistics."""

from __future__ import annotations

import copy
import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def group_norm(module: nn.Module, num_groups: int = 8) -> nn.Module:
    """Return a copy of a network with GroupNorm in place of every BatchNorm2d.

    GroupNorm (Wu and He, ECCV 2018) has no running statistics, so clients have none to disagree about; Fed3R's
    MobileNet has it, with 8 groups. Weight, bias and epsilon carry over, but a channel is then normalised by other
    statistics than those that the network was trained with: features change, and a closed-form head must be solved on
    the new ones.

    Parameters
    ----------
    module : nn.Module
        Left as it is; a network without BatchNorm comes back as a plain copy.
    num_groups : int
        Wanted for each layer; where it does not divide the channels, their greatest common divisor.

    Raises
    ------
    ValueError
        If num_groups is below 1, or a BatchNorm layer is of another kind (1d, 3d, or a subclass that does more).
    """
    if num_groups < 1:
        raise ValueError(f"num_groups must be at least 1, got {num_groups}")
    made = copy.deepcopy(module)
    replacements: dict[nn.Module, nn.GroupNorm] = {}  # a layer used at two places stays one layer
    for name, layer in list(made.named_modules(remove_duplicate=False)):
        if not isinstance(layer, _BatchNorm):
            continue
        if type(layer) is not nn.BatchNorm2d:
            raise ValueError(f"only BatchNorm2d can be replaced by GroupNorm, {name!r} is a {type(layer).__name__}")
        if layer not in replacements:
            replacements[layer] = _group_norm_like(layer, num_groups)
        if not name:
            return replacements[layer]
        parent, _, attribute = name.rpartition(".")
        setattr(made.get_submodule(parent), attribute, replacements[layer])
    return made


def _group_norm_like(layer: nn.BatchNorm2d, num_groups: int) -> nn.GroupNorm:
    groups = math.gcd(num_groups, layer.num_features)
    made = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)
