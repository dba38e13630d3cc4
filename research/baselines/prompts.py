"""Prompt tuning: learnable vectors among the tokens of a frozen transformer.

Jia et al., "Visual Prompt Tuning", ECCV 2022 (their shallow prompts); in federations Weng et al., "Probabilistic
Federated Prompt-Tuning with Non-IID and Imbalanced Data", NeurIPS 2024, whose FedAvg-PT and FedProx-PT this is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.backbones.text.encoders import POOLINGS, PooledEncoder
from fedstats_app.backbones.torchvision_models import ClassToken
from fedstats_app.heads import LinearHead
from fedstats_app.training.model import TunedModel
from fedstats_app.training.training_options import LocalOptions

# Keeps the draw of prompts apart from every other draw by a seed.
_STREAM = 0x9A0


def among_tokens(tokens: Tensor, prompts: Tensor | None) -> Tensor:
    """Put prompts (k, d) or (B, k, d) behind the first of tokens (B, T, d), which is the class's: (B, T + k, d)."""
    if prompts is None:
        return tokens
    return torch.cat([tokens[:, :1], prompts.expand(tokens.shape[0], -1, -1), tokens[:, 1:]], dim=1)


class PromptedClassToken(ClassToken):
    """A vision transformer that takes prompts, which get no position; made from one that takes none."""

    @property
    def prompt_sizes(self) -> tuple[int, int]:
        """Number of values of a patch, and d."""
        return 3 * self.patch_size**2, self.class_token.shape[-1]

    def forward(self, images: Tensor, prompts: Tensor | None = None) -> Tensor:
        """Return the class token (B, d) of images (B, 3, H, W)."""
        patches = self.conv_proj(images)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches.flatten(2).mT], dim=1)
        tokens = among_tokens(tokens + self._position_embedding(*patches.shape[-2:]), prompts)
        encoded: Tensor = self.encoder.ln(self.encoder.layers(tokens))  # type: ignore[operator]
        return encoded[:, 0]


class PromptedEncoder(PooledEncoder):
    """A text encoder that takes prompts, which get positions, as words have, and are left out of the pooling."""

    @property
    def prompt_sizes(self) -> tuple[int, int]:
        """Length of a word's embedding, twice: it is what a token is made from."""
        dim = int(self.model.get_input_embeddings().embedding_dim)
        return dim, dim

    def forward(self, tokens: Tensor, prompts: Tensor | None = None) -> Tensor:
        """Return the features (B, d) of tokens (B, 2, T) int64: ids and attention mask.

        A ValueError if tokens and prompts exceed the model's positions.
        """
        if prompts is None:
            return super().forward(tokens)
        ids, mask, number = tokens[:, 0], tokens[:, 1], prompts.shape[-2]
        most = getattr(self.model.config, "max_position_embeddings", None)
        if most is not None and ids.shape[1] + number > most:
            raise ValueError(
                f"texts of {ids.shape[1]} tokens and {number} prompts must be at most {most} together: set "
                f"input-size to {most - number} or less"
            )
        words = among_tokens(self.model.get_input_embeddings()(ids), prompts)
        seen = torch.cat([mask[:, :1], mask.new_ones(mask.shape[0], number), mask[:, 1:]], dim=1)
        hidden = self.model(inputs_embeds=words, attention_mask=seen).last_hidden_state
        features = POOLINGS[self.pooling](torch.cat([hidden[:, :1], hidden[:, 1 + number :]], dim=1), mask)
        return F.normalize(features, dim=1) if self.normalise else features


def taking_prompts(network: nn.Module) -> nn.Module:
    """Return a backbone's network as one that takes prompts beside its inputs, with the same weights.

    A ValueError names a network that cannot.
    """
    if isinstance(network, ClassToken):
        return PromptedClassToken(network)
    if isinstance(network, PooledEncoder):
        return PromptedEncoder(network.model, network.pooling, normalise=network.normalise)
    raise ValueError(f"{type(network).__name__} takes no prompts; vit_b_16, vit_b_32 and text encoders do")


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
        raise ValueError(f"{type(network).__name__} takes no prompts: see taking_prompts")
    return sizes


def initial_prompts(network: nn.Module, number: int, seed: int) -> Tensor:
    """Draw prompts (number, d) uniformly from [-v, v], v = sqrt(6 / (m + d)), m and d the network's prompt_sizes.

    For an image m is the numbers of a patch, as Jia et al. and Weng et al. have it; for a text it is d.
    """
    made_from, dim = prompt_sizes(network)
    bound = math.sqrt(6.0 / (made_from + dim))
    drawn = np.random.default_rng((seed, _STREAM)).uniform(-bound, bound, (number, dim))
    return torch.from_numpy(drawn).float()


def prompt_model(head: LinearHead, network: nn.Module, prompts: Tensor, *, temperature: float = 1.0) -> TunedModel:
    """Return a model of which prompts (k, d) and the head's weight are trained, on a network that takes prompts."""
    model = TunedModel(head, backbone=Prompted(network, prompts), tune="full", tune_bias=False, temperature=temperature)
    model.get_submodule("backbone.network").requires_grad_(False)
    return model


def prompt_adam(parameters: Sequence[nn.Parameter], options: LocalOptions) -> torch.optim.Adam:
    """Return Adam as Weng et al. have it in prompt tuning."""
    betas, eps = (0.9, 0.98), 1e-6
    return torch.optim.Adam(
        parameters, options.learning_rate, betas, eps, weight_decay=options.weight_decay, foreach=False
    )
