"""The networks of texts: tokens in, one vector per text out; and a language model's output embedding.

Schick and Schuetze, "Exploiting Cloze Questions for Few Shot Text Classification and Natural Language Inference", EACL
2021: a class is a word, and its score is the language model's for that word in a prompt around the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedstats_app.backbones.weights import WeightsError


def mean_of_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean (B, d) of the vectors (B, T, d) where the mask (B, T) is 1."""
    weights = mask[:, :, None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def last_token(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the vector (B, d) of the last token before the padding."""
    return hidden[torch.arange(len(hidden), device=hidden.device), (mask.sum(1) - 1).clamp(min=0)]


# From the vectors (B, T, d) of tokens and the mask (B, T) to (B, d).
POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_of_tokens,
    "first": lambda hidden, mask: hidden[:, 0],
    "last": last_token,
    "max": lambda hidden, mask: hidden.masked_fill(mask[:, :, None] == 0, torch.finfo(hidden.dtype).min).amax(1),
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
        Divide the vector by its length, as sentence encoders do that are compared by cosine.
    """

    def __init__(self, model: Any, pooling: str, *, normalise: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pooling, self.normalise = pooling, normalise

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (B, d) of tokens (B, 2, T) int64: ids and attention mask."""
        ids, mask = tokens[:, 0], tokens[:, 1]
        features = POOLINGS[self.pooling](self.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)
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


@dataclass(frozen=True, eq=False)
class LanguageHead:
    """Output embedding: scores every word of the vocabulary, from the vector at a token.

    Attributes
    ----------
    weight : Tensor
        (V, d), the output embedding.
    bias : Tensor
        (V,).
    tokenizer : transformers.PreTrainedTokenizerFast
        Which word is which row.
    template : str
        The prompt that the vector is for: a word at its beginning has no blank before it.
    """

    weight: Tensor
    bias: Tensor
    tokenizer: Any
    template: str

    def rows(self, words: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return weight (C, d) and bias (C,) float32 of some words, on the CPU.

        A ValueError says if a word is not one token of the vocabulary, or two of them are the same.
        """
        tokens = [self.token_of(word) for word in words]
        if len(set(tokens)) < len(tokens):
            raise ValueError(f"label-words must be different tokens, got {list(words)}, tokens {tokens}")
        weight, bias = (part.detach()[tokens].to("cpu", torch.float32) for part in (self.weight, self.bias))
        return weight, bias

    def token_of(self, word: str) -> int:
        """Return the id of the one token that a word is, within a sentence."""
        # Byte-level and sentence-piece vocabularies have words with the blank before them.
        spellings = (word,) if self.template.startswith("{mask}") else (f" {word}", word)
        found = [self.tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings]
        single = [tokens[0] for tokens in found if len(tokens) == 1 and tokens[0] != self.tokenizer.unk_token_id]
        if not single:
            pieces = self.tokenizer.convert_ids_to_tokens(found[0])
            raise ValueError(f"a label word must be one token of the model's vocabulary, got {word!r}: {pieces}")
        return int(single[0])


def take_language_head(model: Any) -> tuple[Tensor, Tensor]:
    """Put the identity in place of a language model's output embedding, and return its weight (V, d) and bias (V,).

    The model's ``logits`` are then the vectors that the output embedding took. A WeightsError says if it has no linear
    output embedding.
    """
    output = model.get_output_embeddings()
    if not isinstance(output, nn.Linear):
        raise WeightsError(f"{type(model).__name__} has no language head that is one linear layer")
    name = next(name for name, module in model.named_modules() if module is output)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, nn.Identity())
    bias = output.bias if output.bias is not None else torch.zeros(len(output.weight))
    return output.weight.detach(), bias.detach()
