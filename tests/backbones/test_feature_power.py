"""Features to a power: against numpy, in the fingerprint, in saved and exported heads, and in training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from fedstats_app.backbones import load_backbone
from fedstats_app.backbones.architecture import PoweredFeatures
from fedstats_app.backbones.backbone_options import BackboneOptions
from fedstats_app.report.classifier import load
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError
from tests.support.simulation import simulate

IMAGE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))


@given(st.floats(0.1, 2.0), st.integers(0, 99))
def test_features_are_raised_and_scaled_and_a_common_factor_does_not_matter(power: float, seed: int) -> None:
    features = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = PoweredFeatures(nn.Identity(), power)(features + 1e-3)
    raised = (features.numpy() + 1e-3) ** power
    np.testing.assert_allclose(found.numpy(), raised / np.linalg.norm(raised, axis=1, keepdims=True), rtol=1e-9)
    torch.testing.assert_close(PoweredFeatures(nn.Identity(), power)(7.0 * (features + 1e-3)), found)


def test_features_of_zero_stay_finite_and_so_does_their_gradient() -> None:
    features = torch.zeros(2, 3, requires_grad=True)
    made = PoweredFeatures(nn.Identity(), 0.5)(features)
    made.sum().backward()
    assert features.grad is not None
    assert bool(made.isfinite().all()) and bool(features.grad.isfinite().all())


def test_the_backbones_features_and_its_fingerprint_follow() -> None:
    plain, rooted = load_backbone("random:tiny"), load_backbone("random:tiny", feature_power=0.5)
    (of_plain,), (of_rooted,) = (list(one.extract([IMAGE])) for one in (plain, rooted))
    root = of_plain.clamp(min=0).sqrt()
    torch.testing.assert_close(of_rooted, root / root.norm(), rtol=1e-4, atol=1e-4)
    others = (load_backbone("random:tiny", feature_power=power) for power in (0.25, 1.0))
    assert [one.fingerprint == plain.fingerprint for one in others] == [False, True]
    assert rooted.fingerprint != plain.fingerprint and rooted.features.endswith("to the power 0.5 and of length one")


def test_auto_knows_the_networks_name_alone() -> None:
    powers = {name: BackboneOptions(backbone=name).power for name in ("squeezenet1_1", "efficientnet_lite0")}
    assert powers == {"squeezenet1_1": 0.5, "efficientnet_lite0": 1.0}
    assert BackboneOptions(backbone="squeezenet1_1", feature_power=1.0).power == 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"feature_power": 0}, "feature-power: must be a number in (0, 2]"),
        ({"feature_power": 0.5, "backbone": "tiny-text"}, "feature-power: is for images, got 0.5 with backbone"),
    ],
)
def test_what_is_no_power_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AppConfig.of(**settings)
    assert said in str(caught.value)


def test_saved_and_trained_heads_predict_with_power_mean_and_deviation(tmp_path: Path) -> None:
    of_input = {"input_mean": "0.4914,0.4822,0.4465", "input_std": "0.2023,0.1994,0.201"}
    folder = simulate(tmp_path, method="fedncm", feature_power=0.5, fine_tune="full", num_server_rounds=1, **of_input)
    for name in ("fedncm", "fedncm-full"):
        backbone = load(folder, name).backbone
        (features,) = list(backbone.extract([IMAGE]))
        assert float(features.norm()) == pytest.approx(1.0, abs=1e-5)
        spec = backbone.transform.spec
        assert (spec["mean"], spec["std"]) == ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.201])
