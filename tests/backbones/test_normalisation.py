"""Features to a power, mean and deviation of pixels, and GroupNorm: features, fingerprints and saved heads."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from fedstats_app.backbones import load_backbone
from fedstats_app.backbones.architecture import PoweredFeatures, group_norm
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.option import ConfigError
from fedstats_app.report.classifier import load
from fedstats_app.settings.app_config import AppConfig
from tests.support.networks import small_network
from tests.support.simulation import simulate

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))


@given(st.floats(0.1, 2.0), st.integers(0, 99))
def test_features_are_raised_and_scaled_and_a_common_factor_does_not_matter(power: float, seed: int) -> None:
    features = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = PoweredFeatures(nn.Identity(), power)(features + 1e-3)
    raised = (features.numpy() + 1e-3) ** power
    np.testing.assert_allclose(found.numpy(), raised / np.linalg.norm(raised, axis=1, keepdims=True), rtol=1e-9)
    torch.testing.assert_close(PoweredFeatures(nn.Identity(), power)(7.0 * (features + 1e-3)), found)


def test_the_backbones_features_and_its_fingerprint_follow() -> None:
    plain, rooted = load_backbone("random:tiny"), load_backbone("random:tiny", feature_power=0.5)
    (of_plain,), (of_rooted,) = (list(one.extract([IMAGE])) for one in (plain, rooted))
    root = of_plain.clamp(min=0).sqrt()
    torch.testing.assert_close(of_rooted, root / root.norm(), rtol=1e-4, atol=1e-4)
    half = (0.5, 0.5, 0.5)
    others = [
        *(load_backbone("random:tiny", feature_power=power) for power in (0.5, 0.25)),
        *(load_backbone("random:tiny", mean=mean) for mean in ((0.5, 0.5, 0.4), (0.0, 0.0, 0.0))),
        load_backbone("random:tiny", std=(0.5, 0.5, 0.4)),
    ]
    assert len({one.fingerprint for one in (plain, *others)}) == 6
    assert load_backbone("random:tiny", mean=half, std=half, feature_power=1.0).fingerprint == plain.fingerprint
    assert rooted.features.endswith("to the power 0.5 and of length one")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"feature_power": 0}, "feature-power: must be a number in (0, 2]"),
        ({"feature_power": 0.5, "backbone": "tiny-text"}, "feature-power: is for images, got 0.5 with backbone"),
        ({"input_mean": "0.5,0.5"}, "input-mean: must be a number in (-1, 2], or three, separated by commas, or empty"),
        ({"input_std": "0"}, "input-std: must be a number in (0, 10]"),
        ({"input_std": "nan"}, "input-std: must be"),
        ({"input_std": True}, "input-std: must be"),
        ({"input_mean": "0.5", "backbone": "tiny-text"}, "input-mean: is for images, got '0.5' with backbone"),
    ],
)
def test_what_is_no_power_mean_or_deviation_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AppConfig.of(**settings)
    assert said in str(caught.value)


def test_saved_and_trained_heads_predict_with_power_mean_and_deviation(tmp_path: Path) -> None:
    settings = {"input_mean": CIFAR_MEAN, "input_std": "0.2023,0.1994,0.201", "feature_power": 0.5}
    settings |= {"method": "fedncm", "fine_tune": "full", "partitioner": "dirichlet", "partition.samples-per-class": 20}
    folder = simulate(tmp_path, num_server_rounds=1, **settings)
    for name in ("fedncm", "fedncm-full"):
        backbone = load(folder, name).backbone
        (features,) = list(backbone.extract([IMAGE]))
        assert float(features.norm()) == pytest.approx(1.0, abs=1e-5)
        spec = backbone.transform.spec
        assert (spec["mean"], spec["std"]) == ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.201])


CIFAR_MEAN = "0.4914,0.4822,0.4465"


def test_pixels_are_normalised_by_them() -> None:
    config = AppConfig.of(backbone="random:tiny", input_mean=CIFAR_MEAN, input_std=0.25)
    backbone = loaded_backbone(config.backbone)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    expected = (pixels / 255 - np.array([0.4914, 0.4822, 0.4465])) / 0.25
    found = backbone.transform(Image.fromarray(pixels))
    assert isinstance(found, torch.Tensor)
    np.testing.assert_allclose(found.permute(1, 2, 0).numpy(), expected, rtol=1e-6, atol=1e-6)
    assert AppConfig.from_run_config(config.to_run_config()).backbone == config.backbone


def test_every_batch_norm_becomes_a_group_norm_with_its_affine_map() -> None:
    network = small_network()
    made = group_norm(network, 4)
    assert [layer.num_groups for layer in made.modules() if isinstance(layer, nn.GroupNorm)] == [2, 4]  # 6 and 8
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in made.modules())
    assert not any(name.endswith("running_mean") for name in made.state_dict())
    for name, value in made.state_dict().items():
        assert torch.equal(value, network.state_dict()[name])


def test_it_normalises_each_sample_by_itself() -> None:
    layer = nn.BatchNorm2d(8, eps=0.1)
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    images = torch.randn(5, 8, 4, 4)
    groups = images.reshape(5, 2, -1)
    plain = (groups - groups.mean(2, keepdim=True)) / (groups.var(2, keepdim=True, correction=0) + 0.1).sqrt()
    expected = plain.reshape_as(images) * layer.weight[:, None, None] + layer.bias[:, None, None]
    torch.testing.assert_close(group_norm(layer, 2)(images), expected)
