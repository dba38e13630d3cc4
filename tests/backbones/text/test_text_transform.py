"""Tokens of a text: as the tokenizer makes them, padded to a length that the text alone decides."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.backbones.text.tiny import tiny_tokenizer
from fedstats_app.backbones.text.transform import TextTransform, bucket_lengths

pytest.importorskip("transformers", reason="needs the extra `text`")

PROMPT = "{text} It was {mask}."
texts = st.text(alphabet="abc the.[]MASK\n", max_size=300)


@given(texts)
def test_tokens_are_the_tokenizers_and_the_rest_is_masked(text: str) -> None:
    transform, tokenizer = TextTransform(tiny_tokenizer(), 100), tiny_tokenizer()
    ids, mask = transform(text)
    expected = tokenizer(text, truncation=True, max_length=100)["input_ids"]
    length = int(mask.sum())
    assert ids[:length].tolist() == expected and mask[:length].all() and not mask[length:].any()
    assert (ids[length:] == tokenizer.pad_token_id).all()
    assert len(ids) == min(n for n in bucket_lengths(100) if n >= len(expected))


@given(texts)
def test_a_prompt_keeps_its_one_mask_and_its_end_whatever_the_text(text: str) -> None:
    transform, tokenizer = TextTransform(tiny_tokenizer(), 40, PROMPT), tiny_tokenizer()
    ids, mask = transform(text)
    tokens = tokenizer.convert_ids_to_tokens(ids[: int(mask.sum())].tolist())
    assert len(tokens) <= 40 and tokens[-4:] == ["was", "[MASK]", ".", "[SEP]"]
    assert tokens.count("[MASK]") == 1


def test_a_prompt_holds_as_much_of_the_text_as_fits() -> None:
    transform, tokenizer = TextTransform(tiny_tokenizer(), 16, PROMPT), tiny_tokenizer()
    ids, mask = transform("good bad " * 20)
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    assert bool(mask.all())  # not one place is wasted
    assert tokens == ["[CLS]", *(["good", "bad"] * 5), "it", "was", "[MASK]", ".", "[SEP]"]


def test_batches_are_padded_to_the_longest_and_the_padding_is_masked() -> None:
    transform = TextTransform(tiny_tokenizer(), 64)
    short, long = transform("good"), transform("good " * 25)
    batch = transform.stack([short, long])
    assert batch.shape == (2, 2, 32) and batch.dtype == torch.int64
    assert torch.equal(batch[0, :, :16], short) and not batch[0, 1, 16:].any()
    assert torch.equal(batch[1], long)


def test_the_spec_follows_length_template_and_tokenizer() -> None:
    other = tiny_tokenizer()
    other.add_tokens(["wonderful"])
    specs = [
        TextTransform(tokenizer, length, template).spec
        for tokenizer, length, template in (
            (tiny_tokenizer(), 64, ""),
            (tiny_tokenizer(), 32, ""),
            (tiny_tokenizer(), 64, "{text}!"),
            (other, 64, ""),
        )
    ]
    assert all(one not in specs[:number] for number, one in enumerate(specs))
    truncating = tiny_tokenizer()
    truncating("good", truncation=True, max_length=5)  # leaves its mark in the tokenizer
    assert TextTransform(truncating, 64).spec == specs[0]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match=r"7 tokens leave no room for a text: .* add 7"):
        TextTransform(tiny_tokenizer(), 7, "{text} it was {mask} good.")
    without_mask = tiny_tokenizer()
    without_mask.mask_token = None
    with pytest.raises(ValueError, match="no mask token"):
        TextTransform(without_mask, 64, PROMPT)
    with pytest.raises(TypeError, match="a text must be a str, got int"):
        TextTransform(tiny_tokenizer(), 64)(5)  # type: ignore[arg-type]


PAIR = "{first} ? {mask} , {second}"


def test_a_pair_goes_to_its_places_line_by_line() -> None:
    transform, tokenizer = TextTransform(tiny_tokenizer(), 32, PAIR), tiny_tokenizer()
    for text in ("good film\nbad film", "a {second}\n{first} b\nc", "one line", "\nonly the second", ""):
        first, _, second = text.partition("\n")
        ids, mask = transform(text)
        expected = tokenizer(f"{first} ? [MASK] , {second}")["input_ids"]
        assert ids[: int(mask.sum())].tolist() == expected
