"""Clients as nodes: windows, order, time limits, and Flower's own strategies on top."""

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, Strategy

from fedstats_app.grid import client_grid
from fedstats_app.grid.client_grid import CLIENTS_PER_MESSAGE, ClientGrid
from fedstats_app.grid.in_process import begin_task
from fedstats_app.strategies import Fed3R
from fedstats_app.testing import FIRST_NODE_ID, RUN_ID, Fault, LocalGrid
from fedstats_app.wire import guard, per_client
from tests.support.clients import NUM_CLASSES, Clients, silent

app = ClientApp(mods=[guard])


@app.query("number")
@per_client
def number(msg: Message, context: Context, client_id: int | None) -> Message:
    """Answer with the client's number and as many bytes as the request says."""
    client = context.node_id if client_id is None else client_id
    size = int(msg.content["request"]["bytes"])
    if context.node_config.get("greedy"):
        size *= 1000
    payload = ArrayRecord({"payload": Array(np.zeros(size, np.uint8))})
    return Message(RecordDict({"payload": payload, "number": MetricRecord({"id": client})}), reply_to=msg)


def grid_of(num_clients: int, num_hosts: int, *, inner: dict[str, object] | None = None, **options: Any) -> ClientGrid:
    local = LocalGrid(app, [{} for _ in range(num_hosts)], **(inner or {}))  # type: ignore[arg-type]
    return ClientGrid(local, {client: FIRST_NODE_ID + client % num_hosts for client in range(num_clients)}, **options)


def requests(clients: list[int], size: int = 10) -> list[Message]:
    begin_task(RUN_ID)
    content = RecordDict({"request": ConfigRecord({"bytes": size})})
    return [Message(content, dst_node_id=client, message_type="query.number", group_id="1") for client in clients]


def ask(grid: ClientGrid, **options: float) -> list[Message]:
    return list(grid.send_and_receive(requests(grid.get_node_ids()), **options))


def wire_messages(grid: ClientGrid) -> int:
    return sum(map(len, grid.inner.received.values()))  # type: ignore[attr-defined]


def numbers(replies: list[Message]) -> list[int]:
    return [-1 if reply.has_error() else int(reply.content["number"]["id"]) for reply in replies]


@pytest.mark.parametrize("num_hosts", [1, 2, 7, 50])
@pytest.mark.parametrize("inner", [{}, {"shuffle_seed": 1}, {"shuffle_seed": 2, "per_pull": 1}], ids=["", "mix", "one"])
def test_one_reply_per_client_in_their_order(num_hosts: int, inner: dict[str, object]) -> None:
    grid = grid_of(50, num_hosts, inner=inner)

    replies = ask(grid)

    assert numbers(replies) == list(range(50)) == [reply.metadata.src_node_id for reply in replies]
    assert all(reply.metadata.group_id == "1" for reply in replies)


def test_several_clients_share_a_message() -> None:
    grid = grid_of(100, 2)

    ask(grid)

    assert wire_messages(grid) == 100 / CLIENTS_PER_MESSAGE
    assert grid.inner.clients_requested == 100  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_hosts", [1, 2, 8])
def test_messages_carry_more_clients_once_replies_turn_out_to_be_small(num_hosts: int) -> None:
    """Before the first reply its size is a guess, and 10 clients of it fill the window."""
    grid = grid_of(1000, num_hosts, window_bytes=10 * 2**20, expected_reply_bytes=2**20)

    assert numbers(ask(grid)) == list(range(1000))

    assert wire_messages(grid) <= 1.2 * 1000 / CLIENTS_PER_MESSAGE


def test_requests_of_different_content_are_not_mixed() -> None:
    grid = grid_of(4, 1)
    first, second = requests([0, 1], size=5), requests([2, 3], size=7)

    replies = list(grid.send_and_receive([*second, *first]))

    assert [len(reply.content["payload"]["payload"].numpy()) for reply in replies] == [5, 5, 7, 7]
    assert wire_messages(grid) == 2


def test_without_hosts_every_node_is_a_client_and_messages_pass_as_they_are() -> None:
    local = LocalGrid(app, [{}] * 5, shuffle_seed=4)
    grid = ClientGrid(local)

    replies = ask(grid)

    assert grid.get_node_ids() == sorted(local.contexts) == numbers(replies)
    assert all("clients" not in msg.content for messages in local.received.values() for msg in messages)


def test_pushing_is_refused_where_clients_share_messages() -> None:
    grid = grid_of(4, 2)

    for call in (grid.push_messages, grid.pull_messages):
        with pytest.raises(TypeError, match="use send_and_receive"):
            call([])  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["reply_timeout", "window_bytes", "expected_reply_bytes"])
def test_limits_must_be_positive(key: str) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        grid_of(1, 1, **{key: 0})


def outstanding(grid: ClientGrid, messages: list[Message]) -> Iterator[int]:
    """Yield, at every reply, how many clients were asked and not yet handed on."""
    for handed_on, _ in enumerate(grid.send_and_receive(messages)):
        yield grid.inner.clients_requested - handed_on  # type: ignore[attr-defined]


@pytest.mark.parametrize("inner", [{}, {"shuffle_seed": 5, "per_pull": 3}], ids=["in order", "shuffled"])
def test_no_more_is_outstanding_than_the_window(inner: dict[str, object]) -> None:
    grid = grid_of(300, 3, inner=inner, window_bytes=20 * 2000, expected_reply_bytes=2000)

    counts = list(outstanding(grid, requests(grid.get_node_ids(), size=1900)))

    assert len(counts) == 300 and max(counts) <= 20


def test_a_window_has_a_bound_in_clients_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_grid, "CLIENTS_PER_WINDOW", 400)
    grid = grid_of(900, 3)

    assert max(outstanding(grid, requests(grid.get_node_ids(), size=0))) <= 400


def test_requests_stop_while_the_first_in_turn_is_late() -> None:
    """Everybody answers but client 0: no more than a window is asked and waits in the buffer."""
    grid = grid_of(100, 100, inner={"faults": {0: Fault(late=6)}}, window_bytes=10_000, expected_reply_bytes=1000)
    replies = grid.send_and_receive(requests(grid.get_node_ids(), size=870))

    first = next(replies)

    assert first.metadata.src_node_id == 0
    assert grid.inner.clients_requested <= 10 and grid.inner.clients_answered == grid.inner.clients_requested  # type: ignore[attr-defined]
    assert numbers([first, *replies]) == list(range(100))


def test_a_reply_larger_than_the_window_goes_alone() -> None:
    grid = grid_of(5, 5, window_bytes=100, expected_reply_bytes=2**20)

    assert max(outstanding(grid, requests(grid.get_node_ids(), size=5000))) == 1


def test_one_node_that_sends_much_does_not_make_the_others_wait_in_turn() -> None:
    local = LocalGrid(app, [{"greedy": True}, *({} for _ in range(99))])
    grid = ClientGrid(local, window_bytes=200_000, expected_reply_bytes=2000)

    counts = list(outstanding(grid, requests(grid.get_node_ids(), size=1870)))

    assert len(counts) == 100 and 50 < max(counts) <= 100 and grid.reply_bytes == 2000 - 2


class Witness:
    """Notes, whenever a client makes a reply, how many earlier ones the server still holds."""

    def __init__(self) -> None:
        self.seen: list[weakref.ref[Array]] = []
        self.held: list[int] = []

    def watch(self, app: ClientApp) -> Callable[[Message, Context], Message]:
        def watched(msg: Message, context: Context) -> Message:
            self.held.append(sum(ref() is not None for ref in self.seen))
            return app(msg, context)

        return watched

    def note(self, array: Array) -> None:
        self.seen.append(weakref.ref(array))


def test_a_strategy_holds_one_reply_at_a_time() -> None:
    clients, strategy, witness = Clients(8), Fed3R(NUM_CLASSES), Witness()
    grid = clients.client_grid(8, window_bytes=1, expected_reply_bytes=2**20)
    grid.inner.app = witness.watch(clients.app())  # type: ignore[attr-defined]
    fold = strategy.collection.fold

    def noted(reply: Message) -> object:
        witness.note(reply.content["statistics"]["class-sums"])
        return fold(reply)

    strategy.collection.fold = noted  # type: ignore[assignment, method-assign]
    strategy.start(grid)

    assert len(witness.seen) == 8 and witness.held == [0] * 8


def test_nothing_is_sent_before_somebody_reads() -> None:
    grid = grid_of(3, 3)

    grid.send_and_receive(requests([0, 1, 2]))

    assert grid.inner.clients_requested == 0  # type: ignore[attr-defined]


def test_a_silent_node_costs_its_clients_and_its_time_limit() -> None:
    grid = grid_of(12, 4, inner={"faults": silent(2)}, reply_timeout=0.1)
    started = time.monotonic()

    replies = ask(grid)

    # Three clients share its message, each with its own allowance.
    assert 0.3 <= time.monotonic() - started < 2.0
    assert [client for client, got in enumerate(numbers(replies)) if got == -1] == [2, 6, 10]
    assert replies[6].error.reason == "no reply within 0.3 s (reply-timeout)" and replies[6].metadata.src_node_id == 6


def test_a_silent_node_that_hosts_many_clients_is_waited_for_once() -> None:
    """One client per message and window: without giving up on the node, each would take its full time limit."""
    grid = grid_of(40, 2, inner={"faults": silent(1)}, reply_timeout=0.2, window_bytes=1, expected_reply_bytes=1)
    started = time.monotonic()

    replies = ask(grid)

    assert time.monotonic() - started < 2.0  # 20 clients would take 4 seconds
    assert [client for client, got in enumerate(numbers(replies)) if got == -1] == list(range(1, 40, 2))
    assert "did not answer an earlier request" in replies[39].error.reason


def test_the_time_for_all_bounds_the_whole() -> None:
    grid = grid_of(30, 3, inner={"faults": silent(1)}, window_bytes=10, expected_reply_bytes=1)
    started = time.monotonic()

    replies = ask(grid, timeout=0.3)

    assert time.monotonic() - started < 2.0
    reasons = [reply.error.reason for reply in replies if reply.has_error()]
    assert len(replies) == 30 and numbers(replies)[0] == 0
    assert any("no reply when the" in reason for reason in reasons)
    assert any("not asked before the" in reason for reason in reasons)


def test_nodes_that_refuse_everything_end_the_exchange_at_once() -> None:
    for drops_refused in (True, False):
        faults = dict.fromkeys(range(3), Fault(refused=True))
        replies = ask(grid_of(9, 3, inner={"faults": faults, "drops_refused": drops_refused}))
        assert numbers(replies) == [-1] * 9 and "could not be sent" in replies[0].error.reason


def test_errors_of_the_superlink_reach_the_client_they_are_about() -> None:
    """Flower gives them node 1 as sender: only the message they answer tells whose they are."""
    replies = ask(grid_of(6, 3, inner={"faults": {1: Fault(unavailable=True)}}))

    assert numbers(replies) == [0, -1, 2, 3, -1, 5]
    assert {reply.metadata.src_node_id for reply in replies if reply.has_error()} == {1, 4}


@app.train()
@per_client
def train(msg: Message, context: Context, client_id: int | None) -> Message:
    weight, client = msg.content["arrays"]["weight"].numpy(), int(client_id or 0)  # type: ignore[index,call-overload,union-attr]
    step = np.random.default_rng(client).normal(size=weight.shape).astype(np.float32)
    metrics = MetricRecord({"num-examples": client + 1, "loss": float(abs(step).sum())})
    arrays = ArrayRecord({"weight": Array(weight + 0.1 * step)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
@per_client
def evaluate(msg: Message, context: Context, client_id: int | None) -> Message:
    metrics = MetricRecord({"num-examples": int(client_id or 0) + 1, "accuracy": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


@pytest.mark.parametrize("make", [FedAvg, FedAdam])
def test_flowers_own_strategies_run_unmodified_with_the_same_bytes_on_any_hosts(make: type[Strategy]) -> None:
    def trained(num_hosts: int) -> bytes:
        local = LocalGrid(app, [{}] * num_hosts, shuffle_seed=num_hosts)
        hosts = {client: FIRST_NODE_ID + client % num_hosts for client in range(50)}
        strategy = make(min_available_nodes=50)  # type: ignore[call-arg]
        start = ArrayRecord({"weight": Array(np.zeros((4, 3), np.float32))})
        result = strategy.start(ClientGrid(local, hosts), start, num_rounds=3)
        assert result.evaluate_metrics_clientapp[3]["accuracy"] == pytest.approx(0.5)
        return result.arrays["weight"].data

    arrays = [trained(num_hosts) for num_hosts in (1, 2, 7, 50)]

    assert arrays[1:] == arrays[:1] * 3
    assert arrays[0] != ArrayRecord({"weight": Array(np.zeros((4, 3), np.float32))})["weight"].data


# Silent nodes


def asked_in(grid: ClientGrid, rounds: int, clients: list[int] | None = None) -> dict[int, list[int]]:
    """Play rounds; return which round numbers reached each SuperNode."""
    reached: dict[int, list[int]] = {}
    for number in range(1, rounds + 1):
        before = {node: len(got) for node, got in grid.inner.received.items()}  # type: ignore[attr-defined]
        grid.silences.next_round()
        list(grid.send_and_receive(requests(clients or grid.get_node_ids())))
        for node, got in grid.inner.received.items():  # type: ignore[attr-defined]
            reached.setdefault(node - FIRST_NODE_ID, []).extend([number] * (len(got) > before[node]))
    return reached


def test_who_was_silent_is_asked_again_after_2_4_8_rounds() -> None:
    grid = grid_of(3, 3, inner={"faults": silent(1)}, reply_timeout=0.01)

    assert asked_in(grid, 20) == {0: list(range(1, 21)), 1: [1, 3, 7, 15], 2: list(range(1, 21))}

    assert ask(grid)[1].error.reason == "not asked: it let 4 request(s) time out, and is asked again in 11 round(s)"


def test_an_answer_ends_the_waiting_also_one_that_is_an_error() -> None:
    faults = silent(0, 1)
    grid = grid_of(3, 3, inner={"faults": faults}, reply_timeout=0.01)
    asked_in(grid, 2)
    faults.update({0: Fault(), 1: Fault(raises="disk full")})

    assert asked_in(grid, 1)[0] == [1] == asked_in(grid, 1)[1]
    faults.update(silent(0, 1))
    assert asked_in(grid, 3)[0] == [1, 3]  # two rounds again, not four


def test_clients_can_be_asked_in_any_case_and_outside_of_rounds_all_are() -> None:
    grid = grid_of(2, 2, inner={"faults": silent(0)}, reply_timeout=0.01)
    with grid.silences.forgotten_afterwards():
        asked_in(grid, 1)
        grid.silences.wake([0])
        assert asked_in(grid, 1)[0] == [1]
    for _ in range(3):
        assert ask(grid)[0].error.reason == "no reply within 0.01 s (reply-timeout)"


@pytest.mark.parametrize("num_silent", [1, 60])
def test_the_wait_does_not_grow_with_the_number_of_silent_nodes(num_silent: int) -> None:
    """Every third node is silent, and the window holds two: before, each of them took its full time."""
    faults = silent(*range(0, 3 * num_silent, 3))
    grid = grid_of(200, 200, inner={"faults": faults}, reply_timeout=0.3, window_bytes=2, expected_reply_bytes=1)
    started = time.monotonic()

    replies = ask(grid)

    assert time.monotonic() - started < 4.0
    assert [client for client, got in enumerate(numbers(replies)) if got == -1] == list(faults)


def test_what_is_fetched_while_nodes_are_silent_still_fits_the_window() -> None:
    faults = silent(5, 20, 40)
    grid = grid_of(60, 60, inner={"faults": faults}, reply_timeout=0.1, window_bytes=10_000, expected_reply_bytes=1000)

    held = []
    for handed_on, _ in enumerate(grid.send_and_receive(requests(grid.get_node_ids(), size=870))):
        silent_so_far = sum(position <= handed_on for position in faults)
        held.append(grid.inner.clients_answered - handed_on + silent_so_far)  # type: ignore[attr-defined]

    assert grid.inner.clients_requested == 60 and max(held) <= 10  # type: ignore[attr-defined]
