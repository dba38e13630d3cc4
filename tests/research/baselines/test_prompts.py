"""Prompts among a transformer's tokens: where they stand, and what they leave as it was."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.text.encoders import POOLINGS, PooledEncoder
from research.baselines.prompts import Prompted, initial_prompts, taking_prompts
from tests.support.compare import relative_difference, same_bits
from tests.support.networks import numbers
from tests.support.networks import small_transformer as plain_transformer

IMAGES = numbers(5, 3, 16, 16)


def small_transformer() -> nn.Module:
    return taking_prompts(plain_transformer())


def prompted(network: nn.Module, number: int) -> Prompted:
    network = taking_prompts(network)
    return Prompted(network, initial_prompts(network, number, 3))


@pytest.mark.parametrize("name", ["vit", "random:tiny-text", "all-MiniLM-L6-v2"])
def test_without_a_prompt_features_are_the_networks_own_to_the_bit(name: str) -> None:
    network, inputs = plain_transformer(), IMAGES
    if name != "vit":
        pytest.importorskip("transformers", reason="needs the extra `text`")
        backbone = load_backbone(name, device="cpu")
        texts = ["a great movie", "it was bad, and the film was not good at all", ""]
        network, inputs = backbone.module, backbone.transform.stack([backbone.transform(text) for text in texts])
    with torch.no_grad():
        assert same_bits(prompted(network, 0)(inputs), network(inputs))
        assert relative_difference(prompted(network, 3)(inputs), network(inputs)) > 0.01


class Echo(nn.Module):
    """A language model whose hidden states are the embeddings of its input."""

    config = SimpleNamespace(max_position_embeddings=9)

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding.from_pretrained(numbers(20, 4))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(
        self, *, attention_mask: Tensor, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Any:
        self.seen = attention_mask
        return SimpleNamespace(last_hidden_state=self.words(input_ids) if inputs_embeds is None else inputs_embeds)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_prompts_of_texts_are_attended_to_and_not_pooled(pooling: str) -> None:
    tokens = torch.tensor([[[1, 2, 3, 4, 0, 0], [1, 1, 1, 1, 0, 0]], [[5, 6, 7, 8, 9, 10], [1, 1, 1, 1, 1, 1]]])
    echo = Echo()
    encoder = taking_prompts(PooledEncoder(echo, pooling))
    assert same_bits(encoder(tokens, numbers(3, 4)), encoder(tokens))
    encoder(tokens, numbers(3, 4))
    assert echo.seen.tolist() == [[1] * 7 + [0] * 2, [1] * 9]
    with pytest.raises(ValueError, match=r"6 tokens and 4 prompts must be at most 9 .* input-size to 5"):
        encoder(tokens, numbers(4, 4))
