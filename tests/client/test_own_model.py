"""A client's model between the rounds of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedstats_app.client.personal import resumed
from fedstats_app.heads import LinearHead
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.storage.checkpoint import save_checkpoint
from fedstats_app.training.model import TunedModel
from tests.support.compare import same_bits


def model(seed: int, width: int = 3) -> TunedModel:
    generator = torch.Generator().manual_seed(seed)
    backbone = nn.Linear(4, width)
    for parameter in backbone.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return TunedModel(
        LinearHead(torch.randn(2, width, generator=generator), torch.zeros(2)), backbone=backbone, tune="full"
    )


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(same_bits(one[name], other[name]) for name in one)


def test_a_model_goes_on_after_the_round_it_was_kept_in_only(tmp_path: Path) -> None:
    trained, again = model(0), model(1)
    save_checkpoint(tmp_path, 3, trained.trained_state(), {}, {})
    assert resumed(tmp_path, again, 3)
    assert same(again.trained_state(), trained.trained_state())
    assert not resumed(tmp_path, again, 4)


@pytest.mark.parametrize("what", ["missing", "damaged", "another model"])
def test_what_cannot_be_used_is_left_alone_and_said(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_checkpoint(tmp_path, 2, model(0, width=5 if what == "another model" else 3).trained_state(), {}, {})
    if what == "missing":
        path.unlink()
    elif what == "damaged":
        path.write_bytes(path.read_bytes()[:-20])
    fresh = model(1)
    before = fresh.trained_state()
    assert not resumed(tmp_path, fresh, 2)
    assert same(fresh.trained_state(), before)
    assert "the client starts again" in caplog.text


def test_the_owner_says_where_it_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeConfig.from_node_config({"partition-id": 0, "num-partitions": 1, "state-dir": str(tmp_path / "own")})
    assert node.state_root(AppConfig().cache) == tmp_path / "own"
    config = AppConfig.from_run_config({"cache-dir": str(tmp_path / "cache"), "feature-cache": "off"})
    assert NodeConfig("", 0, 1).state_root(config.cache) == tmp_path / "cache" / "state"
    assert NodeConfig("/data", cache_dir="/node").state_root(config.cache) == Path("/node/state")
    # On a node with data of its own the run does not say where files go.
    monkeypatch.setenv("FEDSTATS_CACHE", str(tmp_path / "default"))
    assert NodeConfig("/data").state_root(config.cache) == tmp_path / "default" / "state"
