"""A language model of two small layers and a tokenizer of few words, made in code: for tests, it knows nothing."""

from __future__ import annotations

import string
from typing import Any

# Whole words, as label words must be; everything else is spelled.
_WORDS = (
    *("a", "an", "bad", "film", "good", "great", "is", "it"),
    *("movie", "not", "she", "terrible", "the", "this", "was"),
)
_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
MASK = "[MASK]"
MAX_LENGTH = 128


def tiny_tokenizer() -> Any:
    """Return a WordPiece tokenizer in lower case: some words, and the printable ASCII characters for all others."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    characters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    pieces = [*_SPECIAL.values(), MASK, *_WORDS, *characters, *(f"##{character}" for character in characters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token=MASK, model_max_length=MAX_LENGTH, **_SPECIAL)


def tiny_config(vocabulary_size: int) -> Any:
    """Return the configuration of a BERT with d = 32, two layers and two heads."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=MAX_LENGTH,
    )
