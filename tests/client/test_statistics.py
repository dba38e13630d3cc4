"""A client's statistics: its network has all threads, however few its samples."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from tests.support.simulation import simulate


def test_the_network_has_all_threads_for_a_client_of_few_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, found = Backbone._compute, []

    def noted(backbone: Backbone, batch: Tensor) -> Tensor:
        found.append(torch.get_num_threads())
        return compute(backbone, batch)

    monkeypatch.setattr(Backbone, "_compute", noted)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        simulate(tmp_path, method="fedncm", num_clients=3, feature_cache="off")
    finally:
        torch.set_num_threads(before)

    assert found and set(found) == {3}
