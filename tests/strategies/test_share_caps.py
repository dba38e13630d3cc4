"""A strategy under caps on shares: honest heads stay, a client that claims too much moves them little."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Context, Message

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.statistics.share_caps import ShareCaps
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import per_client, read_statistics_request, statistics_reply
from tests.support.clients import Clients, run, strategy_for
from tests.support.local_grid import FIRST_NODE_ID, LocalGrid

CLIENTS = Clients(30)


def grid(hostile: int | None = None) -> ClientGrid:
    """Return clients, of whom one may claim 50 times all samples of every class, as the next one's."""

    @per_client
    def answer(msg: Message, context: Context, client_id: int | None) -> Message:
        request = read_statistics_request(msg)
        if client_id == hostile:
            features, labels = CLIENTS.features.repeat(50, 1), (CLIENTS.labels.repeat(50) + 1) % 6
            return statistics_reply(msg, request.statistics(features, labels))
        return statistics_reply(msg, request.statistics(*CLIENTS.part(client_id or 0)))

    return ClientGrid(LocalGrid(answer, [{}]), dict.fromkeys(range(30), FIRST_NODE_ID))


def accuracies(strategy: StatisticsStrategy) -> dict[str, float]:
    return {
        name: float((head.predict(CLIENTS.features) == CLIENTS.labels).double().mean())
        for name, head in strategy.heads.items()
    }


def test_a_swap_is_held_down_and_honest_accuracy_stays() -> None:
    found = {}
    for name, hostile, caps in (
        ("clean", None, ShareCaps()),
        ("clean, capped", None, ShareCaps(0.2)),
        ("attacked", 0, ShareCaps()),
        ("attacked, capped", 0, ShareCaps(0.2)),
    ):
        strategy = strategy_for("one pass", caps=caps)
        strategy.start(grid(hostile))
        found[name] = accuracies(strategy)

    for method, clean in found["clean"].items():
        assert found["attacked"][method] < 0.3 < 0.7 < clean, method
        assert found["clean, capped"][method] > clean - 0.02, method
        assert found["attacked, capped"][method] > clean - 0.1, method


@pytest.mark.parametrize("name", ["one pass", "papers in one pass"])
def test_caps_that_nobody_reaches_change_no_byte(name: str) -> None:
    """But for those who have nearly all of a class, whom a cap of all samples does not reach either."""
    assert run(strategy_for(name, caps=ShareCaps(1.0, 0.9)), grid()) == run(strategy_for(name), grid())


def test_rounds_end_with_the_head_of_one_round() -> None:
    once, rounds = (strategy_for("fed3r", caps=ShareCaps(0.2), fraction_train=share) for share in (1.0, 0.3))
    once.start(grid(3))
    rounds.start(grid(3))

    torch.testing.assert_close(rounds.heads["fed3r"].weight, once.heads["fed3r"].weight, rtol=1e-8, atol=1e-10)
    assert rounds.collection.num_examples == once.collection.num_examples
