"""Samples for training, of either kind: what the backbone's transform makes of them, in the order asked for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedstats_app.backbones import feature_reader as samples_module
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_reader import DatasetSamples, FeatureReader
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data import Dataset, load_dataset
from tests.support.sentences import text_folder

pytest.importorskip("transformers", reason="needs the extra `text`")


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone("random:tiny-text", batch_size=4, device="cpu")


@pytest.fixture
def reviews(tmp_path: Path) -> Dataset:
    return load_dataset(f"folder:{text_folder(tmp_path / 'reviews')}", "train")


@pytest.mark.parametrize("memory", [2**30, 0])
def test_texts_come_as_padded_tokens(
    reviews: Dataset, backbone: Backbone, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_module, "MEMORY_FOR_SAMPLES", memory)
    samples = DatasetSamples(reviews, np.array([20, 3, 7, 1]), backbone)
    assert samples.num_unreadable == 0 and samples.labels.tolist() == reviews.labels[[20, 3, 7, 1]].tolist()
    batch = samples.inputs(torch.tensor([2, 0]))
    alone = [backbone.transform(reviews.sample(index)) for index in (7, 20)]
    assert torch.equal(batch, backbone.transform.stack(alone))


def test_unreadable_texts_are_left_out(tmp_path: Path, backbone: Backbone, caplog: pytest.LogCaptureFixture) -> None:
    folder = text_folder(tmp_path / "reviews")
    (folder / "bad" / "03.txt").write_bytes(b"\xff\xfe\xfd")
    dataset, reader = load_dataset(f"folder:{folder}", "train"), FeatureReader(backbone, tmp_path / "cache")
    samples = DatasetSamples(dataset, np.arange(24), backbone)
    (features,) = [block for block, _ in reader.blocks(dataset, np.arange(24))]
    assert samples.num_unreadable == reader.num_unreadable == 1 and len(samples.labels) == len(features) == 23
    assert "text 'bad/03.txt' cannot be read: a text must be in UTF-8" in caplog.text
