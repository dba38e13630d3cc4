"""Features in blocks, from the network or the cache, with samples read ahead."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from fedstats_app.backbones import feature_reader
from fedstats_app.backbones.feature_reader import BLOCK_SIZE, FeatureReader
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.base.option import ConfigError
from fedstats_app.data import Dataset, load_dataset
from fedstats_app.data.dataset import SampleSource
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig


@pytest.fixture(scope="module")
def sample() -> Dataset:
    return load_dataset("builtin", "train")


def read(reader: FeatureReader, dataset: Dataset, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = list(reader.blocks(dataset, indices))
    return torch.cat([features for features, _ in blocks]), torch.cat([positions for _, positions in blocks])


def image_folder(root: Path, *, damaged: tuple[int, ...] = ()) -> Path:
    draw = np.random.default_rng(0)
    for number in range(12):
        path = root / ("cat", "dog")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number in damaged:
            path.write_bytes(b"not an image")
        else:
            Image.fromarray(draw.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)
    return root


def test_features_come_in_blocks_in_the_order_asked_for(sample: Dataset) -> None:
    backbone = load_backbone("random:tiny", batch_size=16)
    indices = np.random.default_rng(0).integers(0, len(sample), BLOCK_SIZE + 300)
    blocks = list(FeatureReader(backbone).blocks(sample, indices))
    assert [len(features) for features, _ in blocks] == [BLOCK_SIZE, 300]
    features = torch.cat([features for features, _ in blocks])
    one_by_one = torch.cat([next(backbone.extract([sample.sample(int(index))])) for index in indices[1000:1030]])
    assert torch.equal(features[1000:1030], one_by_one)
    assert torch.equal(torch.cat([positions for _, positions in blocks]), torch.arange(len(indices)))


def test_cached_features_are_the_same_bits_and_skip_the_backbone(sample: Dataset, tmp_path: Path) -> None:
    backbone = load_backbone("random:tiny", batch_size=16)
    indices = np.arange(100)
    fresh, _ = read(FeatureReader(backbone), sample, indices)
    first, _ = read(FeatureReader(backbone, tmp_path), sample, indices[:60])
    opened: list[int] = []
    watched = SampleSource(lambda index: opened.append(index) or sample.source.open(index), sample.source.name)
    second, _ = read(FeatureReader(backbone, tmp_path), replace(sample, source=watched), indices)  # 60 known, 40 new
    assert set(opened) == {*range(60, 100)}, "a cached sample was read again"
    assert torch.equal(second, fresh) and torch.equal(first, fresh[:60])


def test_unreadable_samples_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = image_folder(tmp_path / "images", damaged=(3, 4))
    dataset = load_dataset(f"folder:{folder}", "train")
    reader = FeatureReader(load_backbone("random:tiny"), tmp_path / "cache")
    features, positions = read(reader, dataset, np.arange(12))
    assert reader.num_unreadable == 2 and len(features) == 10
    bad = {index for index in range(12) if dataset.sample_name(index)[-6:-4] in ("03", "04")}
    assert set(range(12)) - set(positions.tolist()) == bad
    assert "03.png" in caplog.text and "04.png" in caplog.text


@pytest.mark.parametrize("source", ["folder", "table"])
def test_images_read_ahead_are_the_same_bits_in_the_same_order(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = image_folder(tmp_path / "images", damaged=(1, 6, 7))
    paths = sorted(folder.rglob("*.png"))
    if source == "table":
        rows = [{"image": {"bytes": path.read_bytes()}, "label": path.parent.name} for path in paths]
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    dataset = load_dataset(f"folder:{folder}" if source == "folder" else f"parquet:{tmp_path}", "train")
    backbone, indices = load_backbone("random:tiny", batch_size=4), np.random.default_rng(0).integers(0, 12, 300)
    opened = dataset.source.open
    known = {index: Image.open(path).convert("RGB") for index, path in enumerate(paths) if path.stat().st_size > 20}

    def read_with(threads: int, pixels: int) -> tuple[list[object], set[int]]:
        where: set[int] = set()
        noted = SampleSource(lambda index: where.add(threading.get_ident()) or opened(index), dataset.source.name)
        torch.set_num_threads(threads)
        monkeypatch.setattr(feature_reader, "PIXELS_FOR_A_THREAD", pixels)
        caplog.clear()
        reader = FeatureReader(backbone)
        features, positions = read(reader, replace(dataset, source=noted), indices)
        names = [message.partition(" cannot be read")[0] for message in caplog.messages]
        return [features.tolist(), positions.tolist(), reader.num_unreadable, names], where

    alone, here = read_with(3, 10**9)
    assert here == {threading.get_ident()} and alone == read_with(1, 1)[0]
    ahead, where = read_with(3, 1)
    assert ahead == alone and len(where) > 1
    assert alone[1] == [position for position, index in enumerate(indices.tolist()) if index in known]


def test_the_cache_is_on_in_simulation_and_where_a_node_s_owner_names_a_place(tmp_path: Path) -> None:
    simulated, own = NodeConfig("", 0, 2), NodeConfig("/data")
    config = AppConfig.of(cache_dir=str(tmp_path))
    assert simulated.cache_root(config.cache) == tmp_path and own.cache_root(config.cache) is None
    with pytest.raises(ConfigError, match="feature-cache: must be one of auto, off, got 'on'"):
        AppConfig.from_run_config({"feature-cache": "on"})
    assert simulated.cache_root(replace(config.cache, feature_cache="off")) is None
    named = replace(own, cache_dir="/site/cache")
    assert named.cache_root(config.cache) == Path("/site/cache")
    assert named.cache_root(replace(config.cache, feature_cache="off")) is None


def test_images_that_two_data_sets_share_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second folder has nine of the first one's twelve images, under other names, and one of its own."""
    first, second, cache = image_folder(tmp_path / "first"), tmp_path / "second", tmp_path / "cache"
    for number, path in enumerate(sorted(first.rglob("*.png"))[3:]):
        (second / f"class {number % 3}").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, second / f"class {number % 3}" / f"other-{number}.png")
    Image.new("RGB", (20, 20), "red").save(second / "class 0" / "own.png")
    backbone, computed = load_backbone("random:tiny", batch_size=4), list[torch.Tensor]()
    extract = backbone.extract_inputs
    monkeypatch.setattr(
        backbone, "extract_inputs", lambda inputs: extract(computed.append(one) or one for one in inputs)
    )
    for folder, number in ((first, 12), (second, 1), (second, 0)):
        dataset, before = load_dataset(f"folder:{folder}", "train"), len(computed)
        found, _ = read(FeatureReader(backbone, cache), dataset, np.arange(len(dataset)))
        assert len(computed) - before == number
        assert torch.equal(found, read(FeatureReader(backbone), dataset, np.arange(len(dataset)))[0])
