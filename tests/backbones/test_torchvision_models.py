from pathlib import Path

import pytest
import torch

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.torchvision_models import TORCHVISION_NAMES, ClassToken, torchvision_architecture
from fedstats_app.backbones.weights import load_strictly

torchvision_models = pytest.importorskip("torchvision.models")

_FEATURE_DIMS = {"squeezenet1_1": 512, "mobilenet_v2": 1280, "resnet18": 512, "resnet50": 2048}
_FEATURE_DIMS |= {"efficientnet_b0": 1280, "vit_b_16": 768, "vit_b_32": 768}


def _penultimate(network: torch.nn.Module, name: str, images: torch.Tensor) -> torch.Tensor:
    """Return the inputs of torchvision's own last layer (SqueezeNet: of its classifier, then pooled)."""
    seen: list[torch.Tensor] = []
    if name == "squeezenet1_1":
        return network.features(images).mean((2, 3))
    last = [module for module in network.modules() if isinstance(module, torch.nn.Linear)][-1]
    last.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    network(images)
    return seen[0]


@pytest.mark.parametrize("name", [name for name in _FEATURE_DIMS if not name.startswith("vit")])  # a small one below
def test_features_are_what_the_classifier_sees(name: str) -> None:
    backbone = load_backbone(name, weights="random", input_size=64, batch_size=1, device="cpu")
    network = torchvision_models.get_model(name, weights=None).eval()
    missing, unexpected = network.load_state_dict(backbone.module.state_dict(), strict=False)
    assert not unexpected and {key.split(".")[0] for key in missing} <= {"classifier", "fc", "heads"}
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = _penultimate(network, name, images)
    assert backbone.feature_dim == _FEATURE_DIMS[name]
    torch.testing.assert_close(backbone.forward_batch(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "with_classifier"), [("squeezenet1_1", True), ("resnet18", False)])
def test_files_load_with_or_without_classifier(name: str, with_classifier: bool, tmp_path: Path) -> None:
    state = torchvision_models.get_model(name, weights=None).state_dict()
    if not with_classifier:
        state = {key: value for key, value in state.items() if not key.startswith(("classifier.", "fc."))}
    torch.save(state, tmp_path / "net.pth")
    backbone = load_backbone(name, weights=str(tmp_path / "net.pth"), input_size=32, batch_size=1, device="cpu")
    assert backbone.weights_source == "file net.pth"
    assert all(torch.equal(value, state[key]) for key, value in backbone.module.state_dict().items())


@pytest.mark.parametrize("name", _FEATURE_DIMS)
def test_transform_is_that_of_the_weights(name: str) -> None:
    preset = torchvision_models.get_model_weights(name).IMAGENET1K_V1.transforms()
    spec = torchvision_architecture(name).transform.spec
    assert set(TORCHVISION_NAMES) == set(_FEATURE_DIMS) and spec["input_size"] == preset.crop_size[0] == 224
    assert (spec["mean"], spec["std"]) == (list(preset.mean), list(preset.std))
    assert spec["interpolation"] == preset.interpolation.value


def small_transformer(side: int) -> torch.nn.Module:
    made: torch.nn.Module = torchvision_models.VisionTransformer(side, 16, 2, 2, 32, 64, num_classes=3)
    return made.eval()


@torch.inference_mode()
def test_transformer_takes_other_sizes_as_torchvision_resamples_them() -> None:
    trained = small_transformer(64)
    module = ClassToken(trained)
    for side in (64, 96):
        network = small_transformer(side)
        resampled = torchvision_models.vision_transformer.interpolate_embeddings(side, 16, dict(trained.state_dict()))
        network.load_state_dict(resampled)
        images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(module(images), _penultimate(network, "vit", images), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="sides must be multiples of the patch size 16, got 96 x 60"):
        module(torch.zeros(1, 3, 96, 60))


def test_first_transformers_files_load() -> None:
    """torchvision's files of 2022 call the two layers of an MLP linear_1 and linear_2."""
    module = ClassToken(small_transformer(64))
    state = {key: torch.full_like(value, 0.5) for key, value in module.state_dict().items()}
    old = {key.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): state[key] for key in state}
    assert old.keys() != state.keys()
    state = {**old, "heads.head.bias": torch.zeros(1000)}
    load_strictly(module, state, torchvision_architecture("vit_b_32"), source="a test")
    assert all(bool((value == 0.5).all()) for value in module.state_dict().values())
