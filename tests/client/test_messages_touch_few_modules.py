"""How many modules of the package have a function running while a node handles a message of a training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

import fedstats_app
from fedstats_app import client_app
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.training.model import TrainingRequest, TunedModel
from fedstats_app.training.start import random_head
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.mezo import MEZO, MezoRequest
from fedstats_app.wire.reading import to_values
from fedstats_app.wire.serving import pack_requests
from fedstats_app.wire.training import TRAIN
from tests.support.local_grid import instruction
from tests.support.simulation import site_folder

PACKAGE = Path(fedstats_app.__file__).parent
# What every message needs, whatever it asks.
NOT_COUNTED = {"data", "backbones", "settings"}
# And what a node with data of its own writes down of every message before it is answered.
LEDGER = {"client.ledger", "storage.ledger", "wire.keeping"}
CLASSES = ("ant", "bee")


@contextmanager
def running() -> Iterator[set[str]]:
    """Collect the modules of the package whose functions are called."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(PACKAGE):
            found.add(".".join(path.relative_to(PACKAGE).with_suffix("").parts))

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        for name in {one for one in found if one.split(".")[0] in NOT_COUNTED} | (found & LEDGER):
            found.remove(name)


def mezo(number: int) -> RecordDict:
    """Return the question of a round; the first brings setup and start."""
    if number > 1:
        return MezoRequest(0, number, 7 + number, (Update(6 + number, (0.01,)),)).to_content()
    head = random_head(2, 32, 0)
    setup = MezoSetup(TrainingRequest(2, "full"), tuned="full")
    start = {"head.weight": head.weight, "head.bias": head.bias}
    return MezoRequest(0, 1, 8, setup=setup, start=start).to_content()


def train(number: int) -> RecordDict:
    """Return Flower's question of a round."""
    request = TrainingRequest(2, "full")
    backbone = load_backbone("random:tiny", input_size=16).module
    state = TunedModel(random_head(2, 32, 0), backbone=backbone, tune=request.tune).trained_state()
    config = ConfigRecord(to_values(request))
    config["server-round"] = number
    return RecordDict({"arrays": to_record(state), "fixed": to_record({}), "config": config})


@pytest.fixture(params=["partitions", "own data"])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[RecordDict, str], Message]:
    """Return what asks a client of either kind of node."""
    data = site_folder(tmp_path / "data" / "train", CLASSES, seed=1, images=8)
    own = request.param == "own data"
    node: dict[str, Any] = {"data-path": data} if own else {"partition-id": 0, "num-partitions": 1}
    split = {"num_clients": 2, "dataset": f"folder:{tmp_path / 'data'}", "partitioner": "iid"}
    config = AppConfig.of(backbone="random:tiny", input_size=16, cache_dir=str(tmp_path / "cache"), **split)
    node |= {"state-dir": str(tmp_path / "state")} | ({"min-class-count": 2} if own else {})
    context = Context(1, 4, node, RecordDict(), config.to_run_config())

    def send(content: RecordDict, message_type: str) -> Message:
        asked = content if own else pack_requests(content, [1])
        reply = client_app.app(instruction(asked, message_type, 4), context)
        assert not reply.has_error() and "'" not in str(reply.content.get("failed", {})), reply
        return reply

    return send


# Up to eight of them are the owner's policy and what the node remembers.
@pytest.mark.parametrize(("message_type", "content", "most"), [(MEZO, mezo, 19), (TRAIN, train, 19)])
def test_a_message_runs_through_few_modules(
    ask: Callable[[RecordDict, str], Message],
    message_type: str,
    content: Callable[..., RecordDict],
    most: int,
) -> None:
    ask(content(1), message_type)
    second = content(2)
    with running() as modules:
        ask(second, message_type)
    assert len(modules) <= most, sorted(modules)
