from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedstats_app.backbones.registry import load_backbone
from tests.support.hub_cache import HubCache

timm = pytest.importorskip("timm", reason="timm is an optional extra")

_NAME = "mobilenetv3_small_050"


@pytest.fixture
def network() -> torch.nn.Module:
    return timm.create_model(_NAME, pretrained=False, num_classes=1000).eval()


def test_features_and_transform_are_timms(network: torch.nn.Module, tmp_path: Path) -> None:
    torch.save(network.state_dict(), tmp_path / "full.pth")
    options = {"weights": str(tmp_path / "full.pth"), "input_size": 64, "batch_size": 2}
    backbone = load_backbone(f"timm:{_NAME}", device="cpu", **options)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = network.forward_head(network.forward_features(images), pre_logits=True)
    torch.testing.assert_close(backbone.forward_batch(images), expected, rtol=1e-5, atol=1e-6)
    config = timm.data.resolve_model_data_config(network)
    spec = load_backbone(f"timm:{_NAME}", weights="random", batch_size=1, device="cpu").transform.spec
    assert (3, spec["input_size"], spec["input_size"]) == config["input_size"]
    assert (tuple(spec["mean"]), tuple(spec["std"])) == (config["mean"], config["std"])
    assert spec["interpolation"] == config["interpolation"]


def test_file_in_the_hub_cache_is_used(network: torch.nn.Module, hub_cache: HubCache) -> None:
    config = timm.get_pretrained_cfg(_NAME)
    save_file(network.state_dict(), hub_cache.folder(config.hf_hub_id) / "model.safetensors")
    backbone = load_backbone(f"timm:{_NAME}", batch_size=1, device="cpu")
    assert backbone.weights_source == f"timm {_NAME}.{config.tag}"
    stem = network.state_dict()["conv_stem.weight"]
    assert torch.equal(backbone.module.state_dict()["conv_stem.weight"], stem)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ValueError, match=r"no network 'resnet19'; close to it: .*resnet18"):
        load_backbone("timm:resnet19")
    with pytest.raises(ValueError, match=r"no network 'resnet18\.a1_in2k'; close to it: .*resnet18\.a1_in1k"):
        load_backbone("timm:resnet18.a1_in2k")
