"""The output embedding of a language model, and the classifier that label words make of it.

Schick and Schuetze, "Exploiting Cloze Questions for Few Shot Text Classification and Natural Language Inference", EACL
2021: a class is a word, and its score is the language model's for that word in a prompt around the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstats_app.backbones.weights import WeightsError


@dataclass(frozen=True, eq=False)
class LanguageHead:
    """What scores every word of the vocabulary, from the vector at a token.

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

        Raises
        ------
        ValueError
            If a word is not one token of the vocabulary, or two of them are the same.
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
    """Put the identity in place of a language model's output embedding, which is returned.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Changed: its ``logits`` are then the vectors that the output embedding took.

    Returns
    -------
    weight, bias : Tensor
        (V, d) and (V,); no copies.

    Raises
    ------
    WeightsError
        If the model has no linear output embedding.
    """
    output = model.get_output_embeddings()
    if not isinstance(output, nn.Linear):
        raise WeightsError(f"{type(model).__name__} has no language head that is one linear layer")
    name = next(name for name, module in model.named_modules() if module is output)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, nn.Identity())
    bias = output.bias if output.bias is not None else torch.zeros(len(output.weight))
    return output.weight.detach(), bias.detach()
