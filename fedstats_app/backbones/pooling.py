"""Which of a transformer's tokens become the features: one token, the mean of the patches, or both."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

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
