"""Mirror images among the training images: which they are, whose, and that nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageOps

from fedstats_app.backbones import load_backbone
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.data import load_dataset
from fedstats_app.data.flips import flipped, with_mirror_images
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError
from tests.support.simulation import read_json, simulate, site_folder


def test_the_second_half_are_the_mirror_images_of_the_first() -> None:
    dataset = load_dataset("builtin", "train").subset(np.arange(12))
    both = with_mirror_images(dataset)
    assert len(both) == 24 and both.fingerprint != dataset.fingerprint
    assert both.labels.tolist() == dataset.labels.tolist() * 2
    for index in range(12):
        assert both.sample(index).tobytes() == dataset.sample(index).tobytes()  # type: ignore[union-attr]
        mirrored = ImageOps.mirror(dataset.sample(index))  # type: ignore[arg-type]
        assert both.sample(12 + index).tobytes() == mirrored.tobytes()  # type: ignore[union-attr]
    assert both.sample_name(12) == f"{dataset.sample_name(0)} (mirrored)"


@given(st.integers(1, 200), st.integers(0, 5), st.data())
def test_which_are_mirrored_is_the_seeds_business_whoever_has_them(number: int, seed: int, data: st.DataObject) -> None:
    everything = flipped(np.arange(number), number, "random", seed)
    mine = np.array(data.draw(st.lists(st.integers(0, number - 1), unique=True)), dtype=np.int64)
    assert flipped(mine, number, "random", seed).tolist() == everything[mine].tolist()
    assert (everything % number).tolist() == list(range(number))
    assert flipped(mine, number, "both", seed).tolist() == [*mine, *(mine + number)]
    assert flipped(mine, number, "none", seed) is mine


def test_half_of_them_are_and_others_with_another_seed() -> None:
    draws = [flipped(np.arange(4000), 4000, "random", seed) >= 4000 for seed in (0, 1)]
    assert all(abs(draw.mean() - 0.5) < 0.04 for draw in draws) and 0.4 < (draws[0] == draws[1]).mean() < 0.6


def test_a_cache_of_contents_does_not_take_a_mirror_image_for_the_image(tmp_path: Path) -> None:
    dataset = load_dataset("builtin", "train").subset(np.arange(6))
    backbone = load_backbone("random:tiny", input_size=16)
    plain = torch.cat([block for block, _ in FeatureReader(backbone, tmp_path).blocks(dataset, np.arange(6))])
    cached = FeatureReader(backbone, tmp_path).blocks(with_mirror_images(dataset), np.arange(12))
    fresh = FeatureReader(backbone).blocks(with_mirror_images(dataset), np.arange(12))
    cached_features, fresh_features = (torch.cat([block for block, _ in blocks]) for blocks in (cached, fresh))
    assert torch.equal(cached_features, fresh_features) and torch.equal(cached_features[:6], plain)
    assert not torch.equal(cached_features[6:], plain)


def test_runs_train_on_them_and_test_without_them(tmp_path: Path) -> None:
    settings = {"method": "fedncm", "statistics_error": True, "fine_tune": "probe", "num_server_rounds": 1}
    results = {
        flips: read_json(simulate(tmp_path / flips, training_flips=flips, **settings), "results.json")  # type: ignore[arg-type]
        for flips in ("none", "random", "both")
    }
    numbers = {flips: one["methods"]["fedncm"]["num_examples"] for flips, one in results.items()}
    assert numbers["none"] == numbers["random"] == numbers["both"] / 2
    assert {one["num_test_examples"] for one in results.values()} == {2000}
    errors = [one["statistics_error"]["class_means"]["relative"] for one in results.values()]
    assert max(errors) < 1e-6
    assert len({one["methods"]["fedncm"]["calibration"]["nll_before"] for one in results.values()}) == 3


def test_what_clients_hold_out_is_not_mirrored(tmp_path: Path) -> None:
    kept = {"method": "fedncm", "fine_tune": "probe", "num_server_rounds": 1, "keep": "best"}
    plain, both = (simulate(tmp_path / flips, training_flips=flips, **kept) for flips in ("none", "both"))  # type: ignore[arg-type]
    numbers = [read_json(run, "results.json")["methods"]["fedncm"]["num_examples"] for run in (plain, both)]
    assert numbers[1] == 2 * numbers[0] < 2 * 8000


def test_texts_and_nodes_with_data_of_their_own_have_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="training-flips: are for images, got 'both' with backbone 'tiny-text'"):
        AppConfig.of(training_flips="both", backbone="tiny-text")
    nodes = [{"data-path": site_folder(tmp_path / name, ("ant", "bee"), seed=1, images=12)} for name in "ab"]
    with pytest.raises(ValueError, match="training-flips: for simulations only"):
        simulate(tmp_path / "run", node_configs=nodes, method="fedncm", training_flips="random")
