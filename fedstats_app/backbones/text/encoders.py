"""The networks: one tensor of token ids and attention mask in, one vector per text out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mean_of_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean (B, d) of the vectors (B, T, d) where the mask (B, T) is 1."""
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def first_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the vector (B, d) of the first token, of which BERT calls its own [CLS]."""
    return hidden[:, 0]


def last_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the vector (B, d) of the last token before the padding."""
    return hidden[torch.arange(len(hidden), device=hidden.device), (mask.sum(1) - 1).clamp(min=0)]


def max_of_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum (B, d) of the vectors where the mask is 1."""
    return hidden.masked_fill(mask[:, :, None] == 0, torch.finfo(hidden.dtype).min).amax(1)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_of_tokens,
    "first": first_token,
    "last": last_token,
    "max": max_of_tokens,
}


class PooledEncoder(nn.Module):
    """A transformer and what makes one vector of those of a text's tokens.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Without a head: its output has ``last_hidden_state`` (B, T, d).
    pooling : str
        One of `POOLINGS`.
    normalise : bool
        Whether the vector is divided by its length, as sentence encoders do that are compared by cosine.
    """

    def __init__(self, model: Any, pooling: str, *, normalise: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pooling, self.normalise = pooling, normalise

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (B, d) of tokens (B, 2, T) int64: ids and attention mask."""
        ids, mask = tokens[:, 0], tokens[:, 1]
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        features = POOLINGS[self.pooling](hidden, mask)
        return F.normalize(features, dim=1) if self.normalise else features


class PromptEncoder(nn.Module):
    """A language model up to the vector that its output embedding takes, at one token of a prompt.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        With the identity in place of its output embedding: ``logits`` are then (B, T, d).
    mask_id : int or None
        The token to take is the last of this id; None takes the last before the padding.
    """

    def __init__(self, model: Any, mask_id: int | None) -> None:
        super().__init__()
        self.model, self.mask_id = model, mask_id

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (B, d) of tokens (B, 2, T) int64: ids and attention mask."""
        ids, mask = tokens[:, 0], tokens[:, 1]
        hidden: Tensor = self.model(input_ids=ids, attention_mask=mask).logits
        if self.mask_id is None:
            return last_token(hidden, mask)
        places = torch.arange(ids.shape[1], device=ids.device)
        return hidden[torch.arange(len(ids), device=ids.device), ((ids == self.mask_id) * places).amax(1)]
