"""Prompt tuning: learnable vectors among the tokens of a frozen transformer.

Jia et al., "Visual Prompt Tuning", ECCV 2022 (their shallow prompts); in federations Weng et al., "Probabilistic
Federated Prompt-Tuning with Non-IID and Imbalanced Data", NeurIPS 2024, whose FedAvg-PT and FedProx-PT this is.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

# Keeps the draw of prompts apart from every other draw by a seed.
_STREAM = 0x9A0


def among_tokens(tokens: Tensor, prompts: Tensor | None) -> Tensor:
    """Put prompts (k, d) or (B, k, d) behind the first of tokens (B, T, d), which is the class's: (B, T + k, d)."""
    if prompts is None:
        return tokens
    # Not len(), which fixes the number of samples in an exported network.
    return torch.cat([tokens[:, :1], prompts.expand(tokens.shape[0], -1, -1), tokens[:, 1:]], dim=1)


class Prompted(nn.Module):
    """A frozen network with prompts, which are its only trained parameter: inputs (B, ...) to features (B, d).

    Parameters
    ----------
    network : nn.Module
        Is frozen. It takes prompts beside its inputs, and has ``prompt_sizes``: how many numbers a token is made from,
        and d, how many it has.
    prompts : Tensor
        (k, d) float32; with k = 0 features are the network's own, to the bit.

    Raises
    ------
    ValueError
        If the network takes no prompts, or those of another length.
    """

    def __init__(self, network: nn.Module, prompts: Tensor) -> None:
        super().__init__()
        _, dim = prompt_sizes(network)
        if prompts.ndim != 2 or prompts.shape[1] != dim:
            raise ValueError(f"prompts must have shape (k, {dim}), got {tuple(prompts.shape)}")
        self.prompts = nn.Parameter(prompts)
        self.network = network.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return features (B, d)."""
        features: Tensor = self.network(inputs, self.prompts)
        return features


def prompt_sizes(network: nn.Module) -> tuple[int, int]:
    """Return a network's ``prompt_sizes``; a ValueError names one that has none."""
    sizes: tuple[int, int] | None = getattr(network, "prompt_sizes", None)
    if sizes is None:
        raise ValueError(f"{type(network).__name__} takes no prompts; vit_b_16, vit_b_32 and text encoders do")
    return sizes


def initial_prompts(network: nn.Module, number: int, seed: int) -> Tensor:
    """Draw prompts (number, d) uniformly from [-v, v], v = sqrt(6 / (m + d)), m and d the network's prompt_sizes.

    For an image m is the numbers of a patch, as Jia et al. and Weng et al. have it; for a text it is d.
    """
    made_from, dim = prompt_sizes(network)
    bound = math.sqrt(6.0 / (made_from + dim))
    drawn = np.random.default_rng((seed, _STREAM)).uniform(-bound, bound, (number, dim))
    return torch.from_numpy(drawn).float()
