"""Networks of timm that a config.json describes: folders and the hub's cache, in the layouts of published encoders."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.weights import WeightsError
from tests.support.hub_cache import HubCache

timm = pytest.importorskip("timm", reason="timm is an optional extra")

# A vision transformer of two small layers.
ARCHITECTURE = "vit_tiny_patch16_224"
SMALL: dict[str, Any] = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 32}
PRETRAINED = {"tag": "test", "input_size": [3, 32, 32], "fixed_input_size": True, "interpolation": "bicubic"}
PRETRAINED |= {"mean": [0.7, 0.58, 0.7], "std": [0.21, 0.23, 0.18], "num_classes": 0}
PRETRAINED |= {"first_conv": "patch_embed.proj", "classifier": "head"}
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def make_network(**more: Any) -> torch.nn.Module:
    torch.manual_seed(3)
    network: torch.nn.Module = timm.create_model(ARCHITECTURE, num_classes=0, **{**SMALL, **more})
    for parameter in network.parameters():  # biases and scales too: all must be read
        torch.nn.init.normal_(parameter, std=0.1)
    return network.eval()


def save(
    folder: Path, network: torch.nn.Module, *, file: str = "model.safetensors", licence: str = "", **arguments: Any
) -> Path:
    """Save a network as timm does for the hub."""
    folder.mkdir(parents=True, exist_ok=True)
    more = {"license": licence} if licence else {}
    described = {"model_args": {**SMALL, **arguments}, "pretrained_cfg": {**PRETRAINED, **more}}
    (folder / "config.json").write_text(json.dumps({"architecture": ARCHITECTURE, "num_features": 48, **described}))
    if file.endswith(".safetensors"):
        save_file(network.state_dict(), folder / file)
    else:
        torch.save(network.state_dict(), folder / file)
    return folder


def loaded(name: str, **options: Any) -> Backbone:
    return load_backbone(name, batch_size=2, device="cpu", **options)


def features(network: torch.nn.Module, **more: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = network(IMAGES, **more)
    return found


def same(backbone: Backbone, expected: torch.Tensor) -> None:
    torch.testing.assert_close(backbone.forward_batch(IMAGES), expected, rtol=1e-5, atol=1e-6)


def test_a_folder_gives_the_networks_own_features_and_transform(tmp_path: Path) -> None:
    network = make_network()
    backbone = loaded(f"timm:local-dir:{save(tmp_path / 'model', network)}")
    same(backbone, features(network))
    assert backbone.weights_source == "folder model" and backbone.features == "the class token"
    spec = backbone.transform.spec
    assert (spec["input_size"], spec["mean"], spec["std"]) == (32, PRETRAINED["mean"], PRETRAINED["std"])
    assert spec["interpolation"] == "bicubic"


def test_the_hubs_cache_and_a_folder_are_the_same_network(tmp_path: Path, hub_cache: HubCache) -> None:
    network = make_network()
    save(hub_cache.folder("Org/Name"), network, file="pytorch_model.bin")
    by_name = loaded("timm:hf-hub:Org/Name")
    by_folder = loaded(f"timm:local-dir:{save(tmp_path / 'elsewhere', network)}")
    by_weights = loaded("timm:hf-hub:Not/Cached", weights=str(tmp_path / "elsewhere"))
    assert by_name.fingerprint == by_folder.fingerprint == by_weights.fingerprint
    assert (by_name.name, by_weights.name) == ("timm:hf-hub:Org/Name", "timm:hf-hub:Not/Cached")
    assert by_name.weights_source == "hub Org/Name"
    save(hub_cache.folder("Org/Name", "v2"), network)
    assert loaded("timm:hf-hub:Org/Name@v2").fingerprint == by_name.fingerprint


Arguments = tuple[str, dict[str, Any]]
UNI: Arguments = ("init_values=1e-5,dynamic_img_size=true", {"init_values": 1e-5, "dynamic_img_size": True})
UNI2: Arguments = (
    "init_values=1e-5,mlp_ratio=5.33334,no_embed_class=true,mlp_layer=SwiGLUPacked,act_layer=SiLU,reg_tokens=8",
    {"init_values": 1e-5, "mlp_ratio": 5.33334, "no_embed_class": True, "reg_tokens": 8, "act_layer": torch.nn.SiLU},
)


@pytest.mark.parametrize("style", [UNI, UNI2], ids=["UNI", "UNI2-h"])
def test_arguments_of_the_model_card_are_given_in_the_run_config(style: Arguments, tmp_path: Path) -> None:
    text, given = style
    layers = {"mlp_layer": timm.layers.SwiGLUPacked} if "SwiGLU" in text else {}
    network = make_network(**given, **layers)
    folder = save(tmp_path / "model", network)
    backbone = loaded(f"timm:local-dir:{folder}", arguments=text)
    same(backbone, features(network))
    reordered = loaded(f"timm:local-dir:{folder}", arguments=",".join(reversed(text.split(","))))
    assert reordered.fingerprint == backbone.fingerprint
    with pytest.raises(WeightsError, match=r"do not fit the backbone"):
        loaded(f"timm:local-dir:{folder}")


def test_virchow_gives_tokens_and_the_pooling_is_asked_for(tmp_path: Path) -> None:
    given = {"init_values": 1e-5, "mlp_ratio": 5.3375, "global_pool": "", "reg_tokens": 4}
    network = make_network(**given, **{"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": torch.nn.SiLU})
    name = f"timm:local-dir:{save(tmp_path / 'virchow', network, **given)}"
    arguments = "mlp_layer=SwiGLUPacked,act_layer=SiLU"
    with pytest.raises(ValueError, match=r"set backbone-pooling to cls, mean or cls\+mean"):
        loaded(name, arguments=arguments)
    tokens = features(network)  # (2, 1 + 4 + 4, 48)
    expected = {
        "cls": tokens[:, 0],
        "mean": tokens[:, 5:].mean(1),
        "cls+mean": torch.cat([tokens[:, 0], tokens[:, 5:].mean(1)], dim=1),
    }
    fingerprints = set()
    for pooling, wanted in expected.items():
        backbone = loaded(name, arguments=arguments, pooling=pooling)
        same(backbone, wanted)
        fingerprints.add(backbone.fingerprint)
    assert backbone.feature_dim == 96
    assert backbone.features == "the class token, then the mean of the patch tokens" and len(fingerprints) == 3


def test_another_size_is_an_argument_or_an_input_size(tmp_path: Path) -> None:
    name = f"timm:local-dir:{save(tmp_path / 'model', make_network())}"
    assert loaded(name, arguments="img_size=48").input_size == 48  # the position embeddings of the file are resampled
    with pytest.raises(
        ValueError,
        match=r"cannot take images of 48 x 48 pixels.*input-size=32 is its own.*img_size=48 or dynamic_img_size=true",
    ):
        loaded(name, input_size=48)
    dynamic = loaded(name, arguments="dynamic_img_size=true", input_size=48)
    assert (dynamic.input_size, dynamic.feature_dim) == (48, 48)
    with pytest.raises(ValueError, match="cannot take images of 40 x 40 pixels"):
        loaded(name, arguments="dynamic_img_size=true", input_size=40)


def test_dinov2_as_meta_publishes_it(tmp_path: Path) -> None:
    """Its own names: a mask token beside the network, and position embeddings of another size."""
    network: torch.nn.Module = timm.create_model("vit_small_patch14_dinov2", depth=2, embed_dim=48, num_heads=3)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    state = {**network.state_dict(), "mask_token": torch.zeros(1, 48)}
    torch.save(state, tmp_path / "dinov2_vits14_pretrain.pth")
    small = "depth=2,embed_dim=48,num_heads=3"
    name, weights = "timm:vit_small_patch14_dinov2", str(tmp_path / "dinov2_vits14_pretrain.pth")
    assert loaded(name, arguments=small, weights=weights).input_size == 518
    direct = loaded(name, arguments=f"{small},img_size=28", weights=weights)
    own = timm.create_model(
        "vit_small_patch14_dinov2", depth=2, embed_dim=48, num_heads=3, img_size=28, pretrained=True,
        pretrained_cfg_overlay={"state_dict": state},
    ).eval()  # fmt: skip
    images = IMAGES[:, :, :28, :28]
    with torch.inference_mode():
        torch.testing.assert_close(direct.forward_batch(images), own(images), rtol=1e-5, atol=1e-6)


def test_what_a_config_says_of_files_is_not_followed(tmp_path: Path) -> None:
    """timm takes from config.json where weights lie and how they are read."""
    network = make_network()
    secret = tmp_path / "secret.pth"
    torch.save(make_network(depth=1).state_dict(), secret)
    folder = save(tmp_path / "model", network)
    content = json.loads((folder / "config.json").read_text())
    content["pretrained_cfg"] |= {"file": str(secret), "url": "http://127.0.0.1:9/x.pth", "custom_load": True}
    content["pretrained_cfg"] |= {"hf_hub_id": "evil/model", "source": "file", "state_dict": {"a": 1}}
    (folder / "config.json").write_text(json.dumps(content))
    same(loaded(f"timm:local-dir:{folder}"), features(network))
    content["model_args"]["checkpoint_path"] = str(secret)
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="'checkpoint_path' is not one that may be given"):
        loaded(f"timm:local-dir:{folder}")


@pytest.mark.parametrize("size", ["depth=1000,embed_dim=2,num_heads=1", "embed_dim=240"])
def test_a_network_too_large_is_refused_before_it_is_built(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstats_app.backbones.architecture.MOST_LAYERS", 500)
    monkeypatch.setattr("fedstats_app.backbones.architecture.machine_bytes", lambda: 10**6)
    with pytest.raises(ValueError, match=r"at most 500 layers, and weights that fit this machine"):
        loaded(f"timm:{ARCHITECTURE}", weights="random", arguments=size)


def test_mistakes_are_said(tmp_path: Path, hub_cache: HubCache) -> None:
    with pytest.raises(WeightsError, match=r"config\.json cannot be read"):
        loaded(f"timm:local-dir:{tmp_path}")
    folder = save(tmp_path / "model", make_network())
    (folder / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(WeightsError, match=r"describes no network of timm.*vision:NAME"):
        loaded(f"timm:local-dir:{folder}")
    with pytest.raises(ValueError, match=r"For a model of the hub: timm:hf-hub:MahmoodLab/UNI"):
        loaded("timm:MahmoodLab/UNI")
    with pytest.raises(ValueError, match=r"timm cannot make timm:resnet18 with reg_tokens=4"):
        loaded("timm:resnet18", weights="random", arguments="reg_tokens=4")
    with pytest.raises(ValueError, match=r"mlp_layer must be one of Mlp, .*got 'Kan'"):
        loaded(f"timm:{ARCHITECTURE}", weights="random", arguments="mlp_layer=Kan")
    with pytest.raises(ValueError, match=r"timm:resnet18 has no tokens.*got 'cls'"):
        loaded("timm:resnet18", weights="random", pooling="cls")
    with pytest.raises(WeightsError, match=r"model Org/Absent is not on this machine.*hf download Org/Absent"):
        loaded("timm:hf-hub:Org/Absent")
