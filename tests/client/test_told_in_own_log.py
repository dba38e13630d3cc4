"""A node with data of its own says in its own log how far the features are; the server does not hear of it."""

from pathlib import Path

import pytest
from torch import Tensor

from fedstats_app import server_app
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.client import site
from tests.support.clock import Clock, Said
from tests.support.simulation import nodes_of, simulate

SECONDS_PER_BATCH = 4.0


def test_how_far_a_node_is_stands_in_its_own_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    of_server, of_nodes = Said(clock), list[Said]()
    forward = Backbone.forward_batch

    def slow(self: Backbone, batch: Tensor) -> Tensor:
        clock.sleep(SECONDS_PER_BATCH)
        return forward(self, batch)

    def in_a_log() -> Said:
        of_nodes.append(Said(clock))
        return of_nodes[-1]

    nodes = nodes_of(tmp_path, "abcde", ("ant", "bee"), images=48)
    monkeypatch.setattr(Backbone, "forward_batch", slow)
    monkeypatch.setattr(server_app, "Progress", lambda: of_server)
    monkeypatch.setattr(site, "Progress", in_a_log)
    simulate(tmp_path, node_configs=nodes, method="fedncm", secure_sums="on", holdout_fraction=0)
    first = [line for _, line in of_nodes[0].lines]
    assert first == [
        "features of 32 of 96 images; 8 s so far, about 16 s left",
        "features of 64 of 96 images; 16 s so far, about 8 s left",
        "features of 96 of 96 images; 24 s so far, about 0 s left",
    ]
    assert len(of_nodes) == 5
    heard = of_server.between(0, clock())
    assert "of 5 sites answered" in heard and "features of" not in heard
