"""Prompts and label words: the head on prompt features gives the language model's own logits of the words."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.text.tiny import tiny_config, tiny_tokenizer
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.server.fine_tuning import label_word_head
from tests.support.sentences import sentences

transformers = pytest.importorskip("transformers", reason="needs the extra `text`")

MASKED, CAUSAL = "{text} It was {mask}.", "{text} It was"
WORDS = ("terrible", "great")


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of a small language model, and the prompt for it."""
    folder = tmp_path_factory.mktemp("models") / request.param
    tokenizer = tiny_tokenizer()
    torch.manual_seed(5)
    if request.param == "bert":
        network = transformers.BertForMaskedLM(tiny_config(len(tokenizer)))
        torch.nn.init.normal_(network.cls.predictions.bias)  # zero in a new one
    else:
        config = transformers.GPT2Config(vocab_size=len(tokenizer), n_positions=128, n_embd=32, n_layer=2, n_head=2)
        network = transformers.GPT2LMHeadModel(config)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, MASKED if request.param == "bert" else CAUSAL


def prompted(model: tuple[Path, str]) -> Backbone:
    folder, template = model
    return load_backbone(f"transformers:{folder}", batch_size=4, device="cpu", template=template)


def plain_logits(model: tuple[Path, str], text: str) -> Any:
    """Return the logits of the whole vocabulary, by the library alone."""
    folder, template = model
    tokenizer = tiny_tokenizer()
    inputs = tokenizer(template.replace("{text}", text).replace("{mask}", "[MASK]"), return_tensors="pt")
    masked = template == MASKED
    factory = transformers.BertForMaskedLM if masked else transformers.GPT2LMHeadModel
    with torch.no_grad():
        network = factory.from_pretrained(folder).eval()
        logits = network(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[0]
    place = inputs["input_ids"][0].tolist().index(tokenizer.mask_token_id) if masked else -1
    return logits[place]


def test_the_head_of_label_words_is_the_language_model(model: tuple[Path, str]) -> None:
    backbone = prompted(model)
    head = label_word_head(WORDS, backbone, ("negative", "positive"))
    ids = tiny_tokenizer().convert_tokens_to_ids(list(WORDS))
    texts = sentences(6, seed=2)
    logits = head.logits(torch.cat(list(backbone.extract(texts))))
    expected = torch.stack([plain_logits(model, text)[ids] for text in texts])
    torch.testing.assert_close(logits.float(), expected, rtol=0, atol=1e-5)
    assert "terrible, great" in head.report.regulariser


def test_prompt_features_do_not_depend_on_neighbours(model: tuple[Path, str]) -> None:
    backbone, texts = prompted(model), sentences(7, seed=3)
    together = torch.cat(list(backbone.extract(texts)))
    assert torch.equal(together, torch.cat([next(backbone.extract([text])) for text in texts]))


def test_words_that_do_not_suit_are_refused(model: tuple[Path, str]) -> None:
    backbone, classes = prompted(model), ("negative", "positive")
    for words, message in (
        ("terrible,wonderful", r"one token of the model's vocabulary, got 'wonderful': \['w', '##o'"),
        ("terrible,éa", "must be one token of the model's vocabulary"),
        ("great,Great", "must be different tokens"),
        ("great,bad,good", "one word per class, for negative, positive; got great, bad, good"),
    ):
        with pytest.raises(ValueError, match=message):
            label_word_head(words.split(","), backbone, classes)
    with pytest.raises(ValueError, match="no language head without a text-template"):
        label_word_head(("bad", "good"), load_backbone("random:tiny-text"), classes)


def test_models_without_a_language_head_are_refused(tmp_path: Path, model: tuple[Path, str]) -> None:
    tokenizer = tiny_tokenizer()
    transformers.BertModel(tiny_config(len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=r"no language head: its file has no weights for cls\.predictions"):
        load_backbone(f"transformers:{tmp_path}", template=MASKED)
    folder, template = model
    if template == CAUSAL:
        with pytest.raises(WeightsError, match="the model cannot be loaded"):
            load_backbone(f"transformers:{folder}", template=MASKED)
