"""From a text to the tokens that a language model was trained to see."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedstats_app.backbones.names import MASK_SLOT, PAIR_SLOTS, TEXT_SLOT
from fedstats_app.data.dataset import Sample

SHORTEST = 16
# Texts that stay tokenised in memory, 64 MB at 256 tokens each: training reads the same ones in every round.
REMEMBERED = 2**14

_SLOTS = re.compile("|".join(re.escape(slot) for slot in (TEXT_SLOT, *PAIR_SLOTS)))


def bucket_lengths(max_length: int) -> tuple[int, ...]:
    """Return the lengths that texts are padded to: 16, 32, 64, ... below max_length, and max_length itself."""
    lengths, length = [], SHORTEST
    while length < max_length:
        lengths.append(length)
        length *= 2
    return (*lengths, max_length)


class TextTransform:
    """Tokenise a text and pad it to the shortest of a few lengths that holds it.

    The length depends on the text alone, never on its neighbours, and so do its features. Of a text that is too long
    the end is cut off; the rest of a template stays.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerFast
        The model's own. It is told to neither pad nor truncate by itself.
    max_length : int
        Most tokens T, those that the tokenizer adds included.
    template : str
        A prompt around ``{text}``, or around ``{first}`` and ``{second}``, the first line of a text and the rest, with
        ``{mask}`` where the model's mask token goes; "" for the text alone.

    Raises
    ------
    ValueError
        If there is no room for a text in max_length tokens, or the template has a mask and the tokenizer none.
    """

    kind: Literal["text"] = "text"
    dtype = torch.int64

    def __init__(self, tokenizer: Any, max_length: int, template: str = "") -> None:
        self.tokenizer, self.input_size, self.template = tokenizer, max_length, template
        if MASK_SLOT in template and tokenizer.mask_token is None:
            raise ValueError(f"the template {template!r} has {MASK_SLOT}, but the model's tokenizer has no mask token")
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.backend_tokenizer.no_truncation()
        self._tokenizer_digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
        pads = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
        self._tokens = functools.lru_cache(REMEMBERED)(self._tokenise)
        self._pad_id = next(token for token in pads if token is not None)
        added = len(self._encode(self._prompt("")))
        if added >= max_length:
            raise ValueError(
                f"{max_length} tokens leave no room for a text: the tokenizer and the template {template!r} add {added}"
            )

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Token ids and attention mask, at each of the lengths."""
        return tuple((2, length) for length in bucket_lengths(self.input_size))

    @property
    def spec(self) -> dict[str, object]:
        """All that determines the result, as values that JSON can hold."""
        return {
            "max_length": self.input_size,
            "lengths": list(bucket_lengths(self.input_size)),
            "template": self.template,
            "tokenizer": self._tokenizer_digest,
        }

    def blank(self) -> Tensor:
        """Return the tokens of the empty text (2, T), T the shortest length."""
        return self("")

    def probes(self) -> list[Tensor]:
        """Return the tokens of texts of all lengths, the shortest first."""
        words = "one text is longer than another, and no two lengths are treated alike. "
        return [self(""), self(words), *(self(words * (length // 16)) for _, length in self.shapes)]

    def __call__(self, text: Sample) -> Tensor:
        """Turn one text into a model's input, (2, T) int64 on the CPU, T one of the lengths; to be read only.

        These are token ids, and 1 where there is a token, 0 where there is padding.
        """
        if not isinstance(text, str):
            raise TypeError(f"a text must be a str, got {type(text).__name__}")
        return self._tokens(text)

    def stack(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return (b, 2, T) of b texts' tokens, T that of the longest one."""
        longest = max(tokens.shape[1] for tokens in inputs)
        return torch.stack([self._pad(tokens, longest) for tokens in inputs])

    def standalone_tokenizer(self) -> str:
        """Return a `tokenizer.json` that cuts off and pads by itself, for texts without a template."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        tokenizer.enable_truncation(self.input_size)
        tokenizer.enable_padding(pad_id=self._pad_id)
        made: str = tokenizer.to_str()
        return made

    def _pad(self, tokens: Tensor, length: int) -> Tensor:
        ids, mask = tokens
        free = (0, length - tokens.shape[1])
        return torch.stack([F.pad(ids, free, value=self._pad_id), F.pad(mask, free)])

    def _tokenise(self, text: str) -> Tensor:
        # A text that spells the mask token must not become one.
        plain = text.replace(self.tokenizer.mask_token, " ") if MASK_SLOT in self.template else text
        ids = self._within_limit(plain) or [self._pad_id]  # some tokenizers make nothing of the empty text
        tokens = torch.tensor([ids, [1] * len(ids)], dtype=torch.int64)
        return self._pad(tokens, next(n for n in bucket_lengths(self.input_size) if n >= len(ids)))

    def _within_limit(self, text: str) -> list[int]:
        """Return the token ids of the prompt around as much of the text as fits."""
        if not self.template:
            encoded = self.tokenizer(text, truncation=True, max_length=self.input_size)["input_ids"]
            return [int(token) for token in encoded]
        ids = self._encode(self._prompt(text))
        while (excess := len(ids) - self.input_size) > 0:
            offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
            kept = max(len(offsets) - excess, 0)
            text = text[: offsets[kept][0]] if kept < len(offsets) else text[:-1]
            ids = self._encode(self._prompt(text))
        return ids

    def _prompt(self, text: str) -> str:
        if not self.template:
            return text
        prompt = self.template.replace(MASK_SLOT, self.tokenizer.mask_token or "")
        first, _, second = text.partition("\n")
        filled = dict(zip((TEXT_SLOT, *PAIR_SLOTS), (text, first, second), strict=True))
        # All at once: what a text itself says of slots stays.
        return _SLOTS.sub(lambda slot: filled[slot[0]], prompt)

    def _encode(self, text: str) -> list[int]:
        return [int(token) for token in self.tokenizer(text)["input_ids"]]
