"""Which nodes there are, which clients they host, and a bounded wait for both."""

import time
from collections.abc import Callable

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedstats_app.grid.discovery import Federation, TooFewClients, discover, wait_for_nodes
from fedstats_app.testing import FIRST_NODE_ID, Fault, LocalGrid
from fedstats_app.wire import NodeInfo, guard, node_info_reply
from tests.support.clients import Clients, silent

app = ClientApp(mods=[guard])


@app.query("clients")
def clients(msg: Message, context: Context) -> Message:
    """Say what the node-config says."""
    config = context.node_config
    if "names" in config:
        name = str(config.get("client-name", ""))
        return node_info_reply(msg, NodeInfo(class_names=tuple(str(config["names"])), client_name=name))
    if "raw" in config:
        return Message(RecordDict({"node": ConfigRecord({"partition-id": 0, "num-partitions": -1})}), reply_to=msg)
    worker = {key: int(config.get(key, 0)) for key in ("process", "threads")}
    return node_info_reply(msg, NodeInfo(int(config["partition-id"]), int(config["num-partitions"]), **worker))


def partitions(n: int, of: int | None = None) -> list[dict[str, object]]:
    return [{"partition-id": index, "num-partitions": of or n} for index in range(n)]


def found(grid: LocalGrid, num_clients: int = 12, **limits: object) -> Federation:
    options = {"min_clients": 2, "wait_timeout": 5.0, "settle_seconds": 0.1, "reply_timeout": 5.0, "progress": str}
    return discover(grid, num_clients, **{**options, **limits})  # type: ignore[arg-type]


@pytest.mark.parametrize("num_hosts", [1, 2, 7, 12])
def test_clients_are_spread_over_the_nodes_by_partition(num_hosts: int) -> None:
    federation = found(LocalGrid(app, partitions(num_hosts), shuffle_seed=1))

    assert federation.simulated and not federation.refused
    assert federation.hosts == {client: FIRST_NODE_ID + client % num_hosts for client in range(12)}


@pytest.mark.parametrize(
    ("said", "workers"),
    [
        ([{}, {}, {}], {}),
        ([{"process": 7, "threads": 2}] * 3, {7: 2}),
        ([{"process": 9, "threads": 4}, {"process": 7, "threads": 2}, {"process": 9, "threads": 4}], {9: 4, 7: 2}),
        ([{"process": 9}, {"threads": 2}, {"process": 8, "threads": 1}], {8: 1}),
    ],
)
def test_processes_that_answer_for_nodes_are_counted_once(said: list[dict[str, int]], workers: dict[int, int]) -> None:
    nodes = [{**node, **worker} for node, worker in zip(partitions(3), said, strict=True)]

    assert found(LocalGrid(app, nodes)).workers == workers


def test_more_nodes_than_clients_leaves_some_without() -> None:
    federation = found(LocalGrid(app, partitions(20)))

    assert sorted(federation.hosts) == list(range(12)) and len(federation.supernodes) == 12


def test_nodes_that_come_late_are_waited_for_without_settling() -> None:
    started = time.monotonic()
    grid = LocalGrid(app, partitions(6), nodes_at=lambda call: 1 + call // 2)

    federation = found(grid, settle_seconds=60.0, wait_timeout=60.0)

    assert len(federation.supernodes) == 6 and time.monotonic() - started < 10


@pytest.mark.parametrize("arrival", [lambda call: 1000, lambda call: 40 * call**2], ids=["at once", "over time"])
def test_a_thousand_nodes_are_all_counted(arrival: Callable[[int], int]) -> None:
    grid = LocalGrid(app, partitions(1000), nodes_at=lambda call: min(arrival(call), 1000), shuffle_seed=1)

    federation = found(grid, 1000, wait_timeout=30.0)

    assert len(federation.supernodes) == 1000 == len(federation.hosts)


def test_a_missing_node_is_waited_for_no_longer_than_the_limit() -> None:
    lines: list[str] = []
    started = time.monotonic()

    federation = found(LocalGrid(app, partitions(3, of=4)), wait_timeout=0.5, settle_seconds=0.0, progress=lines.append)

    assert 0.5 <= time.monotonic() - started < 2.0
    assert sorted(federation.hosts) == [client for client in range(12) if client % 4 != 3]
    assert lines == ["3 of 4 SuperNodes came within 1 s"]


def test_nobody_is_a_clear_error_in_bounded_time() -> None:
    started = time.monotonic()

    with pytest.raises(TooFewClients, match=r"0 sites on 0 SuperNodes came within \d s, 2 are needed \(min-clients"):
        found(LocalGrid(app, []), wait_timeout=0.3)
    assert time.monotonic() - started < 2.0


def test_a_silent_node_keeps_nobody_else_from_being_asked() -> None:
    """Others come while it is silent; they are asked, and it is named."""
    grid = LocalGrid(app, partitions(4), faults=silent(0), nodes_at=lambda call: 1 + call // 2)

    federation = found(grid, wait_timeout=1.5)

    assert federation.supernodes == {FIRST_NODE_ID + 1, FIRST_NODE_ID + 2, FIRST_NODE_ID + 3}
    assert federation.refused == {FIRST_NODE_ID: "no reply within 2 s (wait-timeout)"}


def test_a_node_has_its_own_time_limit() -> None:
    grid = LocalGrid(app, [{"names": "ab"}] * 4, faults=silent(2))
    started = time.monotonic()

    federation = found(grid, reply_timeout=0.3, wait_timeout=60.0)

    assert time.monotonic() - started < 5.0 and len(federation.hosts) == 3
    assert federation.refused == {FIRST_NODE_ID + 2: "no reply within 0 s (reply-timeout)"}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(raises="boom"), "boom"),
        (Fault(unavailable=True), "Node Unavailable"),
        (Fault(refused=True), "the message could not be sent"),
    ],
)
@pytest.mark.parametrize("drops_refused", [True, False])
def test_a_node_that_fails_is_named_and_the_run_goes_on(fault: Fault, reason: str, drops_refused: bool) -> None:
    """Nobody is missing then: the other expected nodes are not waited for until the limit."""
    grid = LocalGrid(app, partitions(4), faults={1: fault}, drops_refused=drops_refused)
    started = time.monotonic()

    federation = found(grid, wait_timeout=60.0)

    assert time.monotonic() - started < 5.0
    assert federation.refused == {FIRST_NODE_ID + 1: reason} and len(federation.supernodes) == 3


def test_a_reply_that_comes_twice_or_late_changes_nothing() -> None:
    grid = LocalGrid(app, partitions(4), faults={0: Fault(copies=3), 1: Fault(late=2)})

    assert len(found(grid).supernodes) == 4


def test_a_hostile_description_is_refused() -> None:
    federation = found(LocalGrid(app, [*partitions(3), {"raw": True}]))

    assert len(federation.supernodes) == 3
    assert "num-partitions: must be a whole number of at least 1, got -1" in federation.refused[FIRST_NODE_ID + 3]


def test_a_partition_has_one_host() -> None:
    federation = found(LocalGrid(app, [*partitions(3), {"partition-id": 1, "num-partitions": 3}]))

    assert federation.hosts == {client: FIRST_NODE_ID + client % 3 for client in range(12)}
    assert federation.refused == {FIRST_NODE_ID + 3: f"partition-id 1 is taken by node {FIRST_NODE_ID + 1}"}


@pytest.mark.parametrize("claim", [1, 2, 5, 10**9])
def test_a_node_cannot_take_others_clients_by_another_number_of_partitions(claim: int) -> None:
    federation = found(LocalGrid(app, [{"partition-id": 0, "num-partitions": claim}, *partitions(4)]))

    assert federation.hosts == {client: FIRST_NODE_ID + 1 + client % 4 for client in range(12)}
    assert federation.refused == {FIRST_NODE_ID: f"num-partitions must be 4, as most nodes say, got {claim}"}


def test_nodes_with_their_own_data_are_one_client_each() -> None:
    federation = found(LocalGrid(app, [{"names": "ca"}, {"names": "ab"}, {"names": ""}]))

    assert not federation.simulated and federation.class_names == ("a", "b", "c")
    assert federation.hosts == {node: node for node in range(FIRST_NODE_ID, FIRST_NODE_ID + 3)}


def test_with_their_own_data_later_nodes_are_waited_for_until_no_new_one_comes() -> None:
    grid = LocalGrid(app, [{"names": "ab"}] * 5, nodes_at=lambda call: 2 + call // 3)

    assert len(found(grid, settle_seconds=0.8).hosts) == 5


@pytest.mark.parametrize(
    ("configs", "simulated", "odd"),
    [([{"names": "ab"}, {"names": "ab"}, *partitions(1)], False, 2), ([*partitions(2), {"names": "ab"}], True, 2)],
)
def test_of_mixed_nodes_most_decide(configs: list[dict[str, object]], simulated: bool, odd: int) -> None:
    federation = found(LocalGrid(app, configs), wait_timeout=1.0)

    assert federation.simulated == simulated and len(federation.supernodes) == 2
    assert list(federation.refused) == [FIRST_NODE_ID + odd] and "data-path" in federation.refused[FIRST_NODE_ID + odd]


def test_too_few_says_who_was_refused() -> None:
    grid = LocalGrid(app, [{"names": "ab"}] * 2, faults={0: Fault(raises="no backbone")})

    match = rf"1 sites on 1 SuperNodes .* 2 are needed .*node {FIRST_NODE_ID}: no backbone"
    with pytest.raises(TooFewClients, match=match):
        found(grid, wait_timeout=0.3)


def test_waiting_for_nodes_of_known_number_ends_when_they_are_there() -> None:
    grid = Clients(6).local_grid(nodes_at=lambda call: min(call, 6))

    assert wait_for_nodes(grid, 1, expected=6, settle_seconds=60.0) == list(range(FIRST_NODE_ID, FIRST_NODE_ID + 6))


def test_waiting_for_nodes_of_unknown_number_ends_when_no_new_one_comes() -> None:
    grid = Clients(6).local_grid(nodes_at=lambda call: min(call, 6))

    assert len(wait_for_nodes(grid, 2, settle_seconds=0.5)) == 6


def test_waiting_goes_on_with_fewer_than_expected_but_enough(caplog: pytest.LogCaptureFixture) -> None:
    assert len(wait_for_nodes(Clients(3).local_grid(), 2, expected=5, wait_timeout=0.2)) == 3
    assert "going on with 3 nodes" in caplog.text


@pytest.mark.parametrize(("minimum", "expected"), [(4, None), (4, 4), (4, 2)])
def test_waiting_for_too_few_is_an_error_in_bounded_time(minimum: int, expected: int | None) -> None:
    started = time.monotonic()

    with pytest.raises(TooFewClients, match=r"3 SuperNodes came within 0 s .*, 4 are needed"):
        wait_for_nodes(Clients(3).local_grid(), minimum, expected=expected, wait_timeout=0.2, settle_seconds=0.0)
    assert time.monotonic() - started < 2.0


@pytest.mark.parametrize(
    ("registered", "stays"),
    [
        ({1: "b"}, {1, 2}),  # the key's, whoever has the smaller id
        ({0: "b"}, {0, 2}),
        ({}, {2}),
        ({0: "b", 1: "b"}, {2}),  # registered twice says nothing
        ({2: "b"}, {2}),  # of a node that does not claim it, both are impostors
    ],
)
def test_a_name_is_that_of_the_node_whose_key_has_it(registered: dict[int, str], stays: set[int]) -> None:
    """With nothing but a claim a node shut another site out of half the runs."""
    nodes: list[dict[str, object]] = [{"names": "ab", "client-name": name} for name in ("b", "b", "")]
    federation = found(LocalGrid(app, nodes, registered=registered), min_clients=1)
    assert set(federation.hosts) == {FIRST_NODE_ID + place for place in stays}
    assert federation.refused.keys() == {FIRST_NODE_ID + place for place in {0, 1} - stays}
    assert all("client-name 'b'" in reason for reason in federation.refused.values())
    assert set(federation.client_names.values()) <= {"b", ""}


def test_a_name_of_another_s_key_is_refused_also_where_its_owner_does_not_claim_it() -> None:
    nodes: list[dict[str, object]] = [{"names": "ab", "client-name": "b"}, {"names": "ab"}]
    federation = found(LocalGrid(app, nodes, registered={1: "b"}), min_clients=1)
    assert set(federation.hosts) == {FIRST_NODE_ID + 1} and set(federation.client_names.values()) == {""}
