"""Layers put into or behind a network: GroupNorm in place of BatchNorm, and the pooling of a transformer's tokens."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
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


DESCRIPTIONS: dict[str, str] = {
    "pooled": "the network's own pooled output",
    "cls": "the class token",
    "mean": "the mean of the patch tokens",
    "cls+mean": "the class token, then the mean of the patch tokens",
}


def pool_tokens(tokens: Tensor, num_prefix: int, pooling: str) -> Tensor:
    """Pool the last hidden states of an image's tokens.

    Parameters
    ----------
    tokens : Tensor
        (B, T, d): ``num_prefix`` class and register tokens, the class token first, then one token per patch.
    num_prefix : int
        Tokens that are no patch; they are not in the mean.
    pooling : {"cls", "mean", "cls+mean"}
        Of the class token, of the mean over patches, or of both, one after the other, as Virchow's authors do.

    Returns
    -------
    Tensor
        (B, d), or (B, 2 d) for "cls+mean".

    Raises
    ------
    ValueError
        If there is no class token to take, or the pooling is another.
    """
    if pooling not in ("cls", "mean", "cls+mean"):
        raise ValueError(f"pooling of tokens must be cls, mean or cls+mean, got {pooling!r}")
    if pooling != "mean" and num_prefix < 1:
        raise ValueError(f"backbone-pooling {pooling!r} needs a class token, and this network has none")
    parts = {"cls": lambda: tokens[:, 0], "mean": lambda: tokens[:, num_prefix:].mean(dim=1)}
    return torch.cat([parts[name]() for name in pooling.split("+")], dim=1)


class PooledTokens(nn.Module):
    """A network whose tokens are pooled as asked: (B, 3, H, W) -> (B, d) or (B, 2 d).

    Parameters
    ----------
    network : nn.Module
        Holds the weights.
    tokens : callable
        From images (B, 3, H, W) to the network's last hidden states (B, T, d).
    num_prefix : int
        Of these, class and register tokens.
    pooling : {"cls", "mean", "cls+mean"}
        As for :func:`pool_tokens`.
    """

    def __init__(
        self, network: nn.Module, tokens: Callable[[nn.Module, Tensor], Tensor], num_prefix: int, pooling: str
    ) -> None:
        super().__init__()
        self.network = network
        self._tokens, self._num_prefix, self._pooling = tokens, num_prefix, pooling

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of images (B, 3, H, W)."""
        return pool_tokens(self._tokens(self.network, images), self._num_prefix, self._pooling)
