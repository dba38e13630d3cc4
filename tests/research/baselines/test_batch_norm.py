"""BatchNorm on a batch's own statistics, with running ones that are kept or averaged."""

import copy
from typing import Any

import pytest
import torch

from fedstats_app.training.local import train_locally
from fedstats_app.training.training_options import LocalOptions
from research.baselines.batch_norm import AdaptingModel
from tests.support.compare import same_bits
from tests.support.networks import HEAD, make_images, small_network

IMAGES = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(9))


def test_averaged_running_statistics_travel_and_kept_ones_do_not() -> None:
    buffers = {f"backbone.{layer}.running_{kind}" for layer in (1, 5) for kind in ("mean", "var")}
    averaged, kept = (AdaptingModel(HEAD, small_network(), one) for one in ("averaged", "kept"))  # type: ignore[arg-type]
    assert averaged.buffer_names == buffers and buffers < set(averaged.trained_state())
    assert kept.buffer_names == frozenset() and not buffers & set(kept.trained_state())
    for model in (averaged, kept):
        other = AdaptingModel(HEAD, small_network(), model.batch_norm)
        train_locally(model, make_images(40), LocalOptions(learning_rate=0.05), key=(0,))
        other.load_trained_state(model.trained_state())
        assert same_bits(other(IMAGES), model(IMAGES))


@pytest.mark.parametrize("batch_norm", ["kept", "averaged"])
def test_a_batchs_own_statistics_are_used_while_training(batch_norm: Any) -> None:
    network, reference = small_network(), copy.deepcopy(small_network()).train()
    reference[3].eval()  # type: ignore[index]  # dropout
    expected = reference(IMAGES)
    model = AdaptingModel(HEAD, network, batch_norm)
    assert same_bits(model.train().features(IMAGES).detach(), expected)
    kept_or_averaged = network if batch_norm == "kept" else reference
    assert model.backbone is not None
    state = kept_or_averaged.state_dict()
    assert all(same_bits(value, state[name]) for name, value in model.backbone.state_dict().items())
    assert same_bits(model.eval().features(IMAGES).detach(), kept_or_averaged.eval()(IMAGES))
