"""FedMeZO's answers of a ClientApp of one's own: a head on features that it computes itself."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import Message
from torch import Tensor, nn

from fedstats_app.client.replica import NodeReplica
from fedstats_app.client.site import Site
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.training.samples import Samples, TensorSamples
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.mezo import mezo_reply, read_mezo_request


def mezo_answer(msg: Message, features: Tensor, labels: Tensor, folder: Path | str) -> Message:
    """Answer a message of :class:`fedstats_app.strategies.FedMeZO`, ``train.mezo``.

    Features (n, d) float32 and labels (n,) int64 in [0, C) are the client's samples, the same in every round. The
    folder is this client's alone, and keeps its replica of the head from message to message.

    Raises
    ------
    RejectedRequest
        If the head does not fit the features, or more than a head is to be tuned.
    """
    request = read_mezo_request(msg)
    replica = _OwnReplica(Path(folder), features, labels, msg.metadata.run_id, request.training)
    with replica.nothing_kept_if_refused():
        return mezo_reply(msg, replica.follow(request) or replica.answer(request, None))


class _OwnReplica(NodeReplica):
    def __init__(self, folder: Path, features: Tensor, labels: Tensor, run_id: int, training: int) -> None:
        node = NodeConfig.from_node_config({"data-path": str(folder), "state-dir": str(folder)})
        super().__init__(Site(AppConfig.of(), node), run_id, training)
        self._samples = _Given(TensorSamples(features, labels))  # type: ignore[assignment]  # in place of the site's
        self._dim = features.shape[1]

    def _network(self, setup: MezoSetup) -> tuple[nn.Module, int, torch.device, int]:
        if setup.tuned != "head":
            raise RejectedRequest(f"only a head can be tuned on given features, got {setup.tuned!r}")
        return nn.Identity(), self._dim, torch.device("cpu"), 1


class _Given:
    def __init__(self, samples: Samples) -> None:
        self._own = samples

    def of(self, _client: int | None, _setup: MezoSetup) -> tuple[Samples, int]:
        return self._own, 0
