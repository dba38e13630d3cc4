"""Threads of a client of few samples: all for its network, one for what is computed from features."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.training.model import TunedModel
from tests.support.simulation import simulate

# Samples of the server's own batches; none of ten clients has as many.
SERVERS = 250


@pytest.fixture
def threads() -> Iterator[int]:
    """Give torch more threads than tests have."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


def test_the_network_has_all_threads_for_a_client_of_few_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    compute, found = Backbone._compute, []

    def noted(backbone: Backbone, batch: Tensor) -> Tensor:
        found.append(torch.get_num_threads())
        return compute(backbone, batch)

    monkeypatch.setattr(Backbone, "_compute", noted)
    simulate(tmp_path, method="fedncm", num_clients=3, feature_cache="off")

    assert found and set(found) == {threads}


@pytest.mark.parametrize(("training", "expected"), [("probe", 1), ("fedmezo", 1), ("full", 3)])
@pytest.mark.usefixtures("threads")
def test_a_head_alone_is_trained_on_one_thread(
    training: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, found = TunedModel.logits, []

    def noted(model: TunedModel, features: Tensor) -> Tensor:
        if len(features) < SERVERS:
            found.append(torch.get_num_threads())
        return logits(model, features)

    monkeypatch.setattr(TunedModel, "logits", noted)
    tuned: dict[str, Any] = {"fine_tune": training, "start_head": "fedncm", "num_server_rounds": 1}
    simulate(tmp_path, method="fedncm", **tuned)

    assert found and set(found) == {expected}
