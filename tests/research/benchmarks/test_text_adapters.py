"""Adapters of a text encoder: what is trained, what travels, and that nothing changes before training."""

from pathlib import Path

import datasets
import pytest
import torch

from fedstats_app.backbones.text.tiny import tiny_config, tiny_tokenizer
from fedstats_app.settings.app_config import AppConfig
from research.benchmarks import adapters
from research.benchmarks.adapted_networks import network_of
from research.benchmarks.features import features_of, settings_of


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    transformers = pytest.importorskip("transformers", reason="needs the extra `text`")
    model, texts, tokenizer = tmp_path / "model", tmp_path / "texts", tiny_tokenizer()
    transformers.BertModel(tiny_config(len(tokenizer))).save_pretrained(model)
    tokenizer.save_pretrained(model)
    texts.mkdir()
    table = datasets.Dataset.from_dict({"text": 10 * ["a good film", "a bad film"], "label": 10 * [1, 0]})
    for split in ("train", "test"):
        table.to_parquet(str(texts / f"{split}-0.parquet"))
    return f"dataset=parquet:{texts} backbone=transformers:{model} feature-cache=off partitioner=iid"


def test_adapters_of_queries_and_values_begin_where_the_encoder_is(experiment: str) -> None:
    config = AppConfig.from_run_config(settings_of(f"{experiment} num-clients=2"))
    data = features_of(config)
    network = network_of(config, data, torch.arange(20), 0)
    assert {name.rpartition(".")[2] for name in network.layers} == {"query", "value"}
    federation = adapters._Federation(network, data, [], 0, 0.1)
    whole, adapted = federation.whole(), federation.begun()
    assert torch.allclose(whole.features(network.test), data.test, atol=1e-5)
    assert torch.equal(whole(network.test), adapted(network.test))
    layers = len(network.layers)
    ends = [name.rpartition(".")[2] for name in adapted.trained_state()]
    assert sorted(ends) == sorted(["weight", "bias", *layers * ["A", "B", "bias"]])
    before = {name: value for name, value in adapted.state_dict().items() if name not in adapted.trained_state()}
    before = {name: value.clone() for name, value in before.items()}
    own = [(network.train[part], data.train_labels[part]) for part in (torch.arange(0, 10), torch.arange(10, 20))]
    federation.clients = own
    megabytes = federation.train(adapted, 2)
    numbers = sum(value.numel() for value in adapted.trained_state().values())
    assert megabytes * 1e6 == pytest.approx(4 * 2 * 2 * numbers)  # two rounds of one client each, both ways
    after = adapted.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not torch.equal(whole(network.test), adapted(network.test))
