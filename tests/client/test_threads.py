"""Threads of a client of few samples: all for its network's batches, one for what is computed from features."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.training.model import TunedModel
from tests.support.simulation import simulate

# More threads than tests have, to which they go back by themselves.
ALL = 3
# Samples of the server's own batches; none of ten clients has as many.
SERVERS = 250


def test_the_network_has_all_threads_for_a_client_of_few_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, found = Backbone._compute, set[tuple[int, int]]()

    def noted(backbone: Backbone, batch: Tensor) -> Tensor:
        found.add((threading.get_ident(), torch.get_num_threads()))
        time.sleep(0.01)  # so long that the next batch comes
        return compute(backbone, batch)

    monkeypatch.setattr(Backbone, "_compute", noted)
    torch.set_num_threads(ALL)
    simulate(tmp_path, method="fedncm", num_clients=1, feature_cache="off")

    assert len(found) >= ALL and {threads for _, threads in found} == {1}


@pytest.mark.parametrize(("training", "expected"), [("probe", 1), ("fedmezo", 1), ("full", ALL)])
def test_a_head_alone_is_trained_on_one_thread(
    training: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, found = TunedModel.logits, []

    def noted(model: TunedModel, features: Tensor) -> Tensor:
        if len(features) < SERVERS:
            found.append(torch.get_num_threads())
        return logits(model, features)

    monkeypatch.setattr(TunedModel, "logits", noted)
    torch.set_num_threads(ALL)
    tuned: dict[str, Any] = {"fine_tune": training, "start_head": "fedncm", "num_server_rounds": 1}
    simulate(tmp_path, method="fedncm", **tuned)

    assert found and set(found) == {expected}
