"""Several networks side by side are one backbone, of which each keeps transform, batches, engine and cache."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.backbone_options import BackboneOptions
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.joined import JoinedBackbone
from fedstats_app.backbones.measurements import feature_norm
from fedstats_app.backbones.registry import load_backbone, loaded_backbone
from fedstats_app.base.option import ConfigError
from fedstats_app.data import load_dataset
from fedstats_app.settings.app_config import AppConfig
from tests.backbones.conftest import features, random_images
from tests.backbones.test_feature_reader import image_folder, read

TWO = "random:tiny+random:wide"


def networks() -> list[Backbone]:
    return [load_backbone("random:tiny", batch_size=4), load_backbone("random:wide", batch_size=4)]


@pytest.mark.parametrize(("feature_map", "bound"), [("none", 2**0.5), ("unit", 1.0), ("relu:64", None)])
def test_features_of_length_one_stand_side_by_side(feature_map: str, bound: float | None) -> None:
    parts, images = networks(), random_images(70)
    joined = JoinedBackbone(parts, feature_map)
    found = features(joined, images)
    expected = torch.cat([F.normalize(features(part, images)) for part in parts], dim=1)
    if feature_map == "relu:64":
        assert found.shape == (70, 64) == (70, joined.feature_dim)
    else:
        torch.testing.assert_close(found, expected if feature_map == "none" else F.normalize(expected))
    assert torch.equal(features(joined, images[5:6]), found[5:6])
    norm = feature_norm(joined).bound
    assert float(found.norm(dim=1).max()) <= norm * (1 + 1e-6) and (bound is None or norm == pytest.approx(bound))


def test_a_fingerprint_knows_networks_order_and_map() -> None:
    tiny, wide = networks()
    joined = [JoinedBackbone([tiny, wide]), JoinedBackbone([wide, tiny]), JoinedBackbone([tiny, wide], "unit"), tiny]
    assert len({backbone.fingerprint for backbone in joined}) == 4
    by_options = loaded_backbone(BackboneOptions(backbone=TWO, device="cpu"))
    assert by_options.fingerprint == joined[0].fingerprint
    assert (by_options.kind, by_options.sizes, by_options.feature_dim) == ("image", "32+8", 32 + 1280)
    assert by_options.licence == "none (random weights)" and "wide, 3x8x8" in repr(by_options)


def test_texts_go_through_two_tokenizers_each() -> None:
    pytest.importorskip("transformers")
    texts = ["", "a good film", "bad " * 40]
    parts = [load_backbone("random:tiny-text", input_size=size) for size in (16, 64)]
    joined = JoinedBackbone(parts)
    expected = torch.cat([F.normalize(features(part, texts)) for part in parts], dim=1)
    torch.testing.assert_close(features(joined, texts), expected)
    assert (joined.kind, joined.sizes, joined.input_size) == ("text", "16+64", 64)


def test_each_network_has_its_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = image_folder(tmp_path / "images")
    sorted(images.rglob("*.png"))[4].write_bytes(b"damaged")
    dataset, cache = load_dataset(f"folder:{images}", "train"), tmp_path / "cache"
    tiny, wide = networks()
    computed: list[str] = []
    for part in (tiny, wide):
        extract = part.extract_inputs
        monkeypatch.setattr(
            part, "extract_inputs", lambda inputs, part=part, extract=extract: _noted(part, extract(inputs), computed)
        )
    everything = np.arange(len(dataset))
    read(FeatureReader(tiny, cache), dataset, everything)
    joined = JoinedBackbone([tiny, wide])
    reader = FeatureReader(joined, cache)
    found, positions = read(reader, dataset, everything)
    assert (computed.count("random:tiny"), computed.count("random:wide")) == (11, 11)
    assert reader.num_unreadable == 1 and positions.tolist() == [p for p in range(12) if p != 4]
    again, _ = read(FeatureReader(joined, cache), dataset, everything)
    assert torch.equal(found, again) and len(computed) == 22
    assert torch.equal(found, read(FeatureReader(joined), dataset, everything)[0])


def _noted(part: Backbone, batches: Any, computed: list[str]) -> Any:
    for batch in batches:
        computed += [part.name] * len(batch)
        yield batch


def test_weights_and_arguments_are_each_networks_own() -> None:
    options = BackboneOptions.of(
        backbone="timm:hf-hub:a/b+efficientnet_lite0+timm:vit",
        backbone_weights="/x/y.pth++/z",
        backbone_arguments="init_values=1e+5++img_size=64",
        backbone_pooling="cls+mean",
        feature_map="unit",
    )
    found = [
        (own.backbone, own.backbone_weights, own.backbone_arguments, own.backbone_pooling, own.feature_map, own.power)
        for own in options.networks
    ]
    assert found == [
        ("timm:hf-hub:a/b", "/x/y.pth", "init_values=100000.0", "cls+mean", "none", 1.0),
        ("efficientnet_lite0", "", "", "auto", "none", BackboneOptions(backbone="efficientnet_lite0").power),
        ("timm:vit", "/z", "img_size=64", "cls+mean", "none", 1.0),
    ]
    assert BackboneOptions(backbone="timm:local-dir:/a+b/c").networks[0].backbone == "timm:local-dir:/a+b/c"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"backbone": "tiny+wide+resnet18+resnet50"}, "must join at most 3 different networks"),
        ({"backbone": "random:tiny+random:tiny"}, "must join at most 3 different networks"),
        ({"backbone": "random:tiny+random:tiny-text"}, "networks of images or networks of texts, not both"),
        ({"backbone": "efficientnet_lite0+squeezenet"}, "did you mean squeezenet1_1"),
        ({"backbone": "tiny,wide"}, "only `fedstats run` in a simulation compares several"),
        ({"backbone": TWO, "backbone_weights": "/x.pth"}, r"backbone-weights: must be A\+B, one for each network"),
        ({"backbone": TWO, "backbone_arguments": "a=1+b=2"}, "backbone-arguments: are for timm:NAME"),
        ({"backbone": TWO, "backbone_pooling": "cls"}, "backbone-pooling: is for timm:NAME"),
        ({"backbone": TWO, "fine_tune": "full"}, "fine-tune: of joined networks only a head is trained, got 'full'"),
        ({"backbone": TWO, "fine_tune": "fedmezo", "fedmezo": {"tune": "norm"}}, "fine-tune: of joined networks"),
    ],
)
def test_what_joined_networks_cannot_be_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        AppConfig.of(**settings)


@pytest.mark.parametrize("settings", [{"fine_tune": "probe"}, {"fine_tune": "fedmezo"}])
def test_heads_of_joined_networks_are_trained(settings: dict[str, Any]) -> None:
    assert AppConfig.of(backbone=TWO, **settings).backbone.backbone == TWO
