"""One contract for all strategies: the head is that of the data, in whatever order, over whatever hosts and apps."""

import copy
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, message_size_mod
from flwr.clientapp.typing import Mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from fedstats_app import strategies
from fedstats_app.base.option import Options
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads import LinearHead, solve_fedcof, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.methods import METHODS, Method, Need
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.strategies import FedCGS, FedCOF, FedMeZO, FedNCM, OnePass
from fedstats_app.strategies.base import StrategyOptions
from fedstats_app.testing import FIRST_NODE_ID, Fault, LocalGrid
from fedstats_app.wire import read_statistics_request, statistics_reply
from fedstats_app.wire.arrays import to_array
from fedstats_app.wire.reading import metrics_reply
from tests.support.clients import DIM, NUM_CLASSES, STRATEGIES, Clients, run, strategy_for
from tests.support.compare import relative_difference
from tests.support.options import configured

CLIENTS = Clients()
GRAM = StatisticsSpec(gram=True)


@pytest.fixture(params=STRATEGIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def expected_heads() -> dict[str, LinearHead]:
    """Solve on all data at once, with the papers' options."""
    statistics = CLIENTS.statistics(GRAM)
    return {
        "fedncm": solve_ncm(statistics.summed()),
        "fed3r": solve_ridge(statistics.summed()),
        "fedcof": solve_fedcof(statistics.rows),
        "fedcgs": solve_gaussian(statistics.summed()),
    }


def test_heads_equal_those_of_the_data_at_once() -> None:
    strategy = strategy_for("papers in one pass")
    strategy.start(CLIENTS.client_grid())

    for method, expected in expected_heads().items():
        head = strategy.heads[method]
        assert relative_difference(head.weight, expected.weight) < 1e-10, method
        assert relative_difference(head.bias, expected.bias, scale=1.0) < 1e-10, method
        assert torch.equal(head.predict(CLIENTS.features), expected.predict(CLIENTS.features))


@pytest.mark.parametrize("method", METHODS)
def test_a_method_alone_equals_it_in_one_pass(method: str) -> None:
    alone, together = strategy_for(method), strategy_for("one pass")

    arrays = run(alone, CLIENTS.client_grid())
    all_arrays = run(together, CLIENTS.client_grid())

    assert set(arrays) == {"weight", "bias"}
    if Need.SCATTER in METHODS[method].needs:
        # Its factors were made of the Gram matrices here, sent there: the same but for their rounding.
        assert relative_difference(together.heads[method].weight, alone.heads[method].weight) < 1e-4
        assert together.wire_bytes(method) == alone.wire_bytes(method) == alone.collection.total_wire_bytes
    else:
        assert {name: all_arrays[f"{method}.{name}"] for name in arrays} == arrays


def test_arrival_order_changes_no_byte(name: str) -> None:
    in_order = run(strategy_for(name), CLIENTS.client_grid())

    for seed in (1, 3):
        grid = CLIENTS.client_grid(5, grid={"shuffle_seed": seed, "per_pull": seed, "faults": {seed: Fault(late=seed)}})
        assert run(strategy_for(name), grid) == in_order


def test_the_spread_over_hosts_changes_no_byte(name: str) -> None:
    clients = Clients(20)
    heads = [run(strategy_for(name), clients.client_grid(hosts)) for hosts in (1, 7, 20)]

    assert heads[1:] == heads[:1] * 2


def garbage(reply: object) -> object:
    reply.content["statistics"] = ArrayRecord()  # type: ignore[attr-defined]
    return reply


def test_the_head_is_that_of_the_clients_that_answered_and_the_others_are_named(name: str) -> None:
    broken = Clients(broken={2: ValueError("no such file"), 9: SystemExit(1)})
    strategy = strategy_for(name)

    run(strategy, broken.client_grid())

    failed = {outcome.client: outcome.reason for outcome in strategy.outcomes if outcome.outcome == "failed"}
    assert failed == {2: "ValueError: no such file", 9: "SystemExit: 1"}
    statistics, merged = CLIENTS.statistics(StatisticsSpec(), without={2, 9}), strategy.collection.total
    assert torch.equal(merged.summed().class_counts, statistics.summed().class_counts)
    assert relative_difference(merged.summed().class_sums, statistics.summed().class_sums) < 1e-12
    rest = strategy_for(name)
    healthy = CLIENTS.client_grid()
    del healthy.hosts[2], healthy.hosts[9]  # type: ignore[union-attr]
    rest.start(healthy)
    assert all(torch.equal(rest.heads[method].weight, head.weight) for method, head in strategy.heads.items())


FAULTS = {
    1: (Fault(raises="\x1b[31mRuntimeError: CUDA out of memory\x1b[0m"), "failed", "RuntimeError: CUDA out of memory"),
    3: (Fault(unavailable=True), "failed", "Node Unavailable"),
    4: (Fault(tamper=garbage), "rejected", "statistics: must have the keys"),  # type: ignore[arg-type]
    6: (Fault(silent=True), "failed", "no reply within 0.3 s (reply-timeout)"),
    8: (Fault(refused=True), "failed", "the message could not be sent"),
    10: (Fault(copies=5), "merged", ""),
    12: (Fault(late=3), "merged", ""),
}


@pytest.mark.parametrize("drops_refused", [True, False], ids=["simulation", "deployment"])
def test_every_fault_of_a_node_is_named_and_costs_nobody_else(drops_refused: bool) -> None:
    faults = {node: fault for node, (fault, _, _) in FAULTS.items()}
    strategy = strategy_for("papers in one pass", reply_timeout=0.3)
    grid = CLIENTS.local_grid(faults=faults, shuffle_seed=3, drops_refused=drops_refused)

    strategy.start(grid)

    told = {outcome.client - FIRST_NODE_ID: (outcome.outcome, outcome.reason) for outcome in strategy.outcomes}
    assert set(told) == set(range(CLIENTS.num_clients))
    for node, (outcome, reason) in told.items():
        _, expected, why = FAULTS.get(node, (None, "merged", ""))
        assert outcome == expected and reason.startswith(why), node
    lost = {node for node, (outcome, _) in told.items() if outcome != "merged"}
    assert lost == {1, 3, 4, 6, 8}
    statistics = CLIENTS.statistics(GRAM, without=lost)
    assert relative_difference(strategy.heads["fed3r"].weight, solve_ridge(statistics.summed()).weight) < 1e-10
    assert strategy.collection.num_examples == int(statistics.rows.num_examples)


@pytest.mark.parametrize(("broken", "min_clients"), [(12, 3), (14, 1)])
def test_too_few_merged_clients_end_the_run_with_the_reasons(broken: int, min_clients: int) -> None:
    clients = Clients(broken=dict.fromkeys(range(broken), ValueError("disk on fire")))
    strategy = strategy_for("one pass", min_clients=min_clients)
    expected = rf"{14 - broken} of 14 sites were merged, {min_clients} are needed .*on fire.*and {broken - 3} more"
    with pytest.raises(TooFewClients, match=expected):
        strategy.start(clients.client_grid())
    if broken == 14:
        with pytest.raises(TooFewClients, match="there is no head"):
            _ = strategy.head


def test_bytes_of_a_method_are_what_it_alone_costs() -> None:
    together = OnePass(NUM_CLASSES, [FedNCM(NUM_CLASSES), FedCOF(NUM_CLASSES, means_per_class=3), FedCGS(NUM_CLASSES)])
    together.start(CLIENTS.client_grid())

    for method in (FedNCM(NUM_CLASSES), FedCOF(NUM_CLASSES, means_per_class=3), FedCGS(NUM_CLASSES)):
        method.start(CLIENTS.client_grid())
        (name,) = method.methods()
        # The scatter of few samples about three means a class has a lower rank than about one.
        assert together.wire_bytes(name) == pytest.approx(method.collection.total_wire_bytes, rel=0.01), name
    alone = sum(together.wire_bytes(name) for name in together.methods())
    assert together.wire_bytes("fedcgs") < together.collection.total_wire_bytes < alone


def test_expected_bytes_bound_every_reply(name: str) -> None:
    strategy = strategy_for(name, feature_dim=DIM)

    strategy.start(CLIENTS.client_grid())

    largest = max(outcome.wire_bytes for outcome in strategy.outcomes)
    assert largest - 24 <= strategy.expected_reply_bytes < 3 * largest
    assert strategy_for(name).expected_reply_bytes == 2**20


def test_a_known_feature_dimension_is_insisted_on() -> None:
    strategy = strategy_for("fedncm", feature_dim=DIM + 1)

    with pytest.raises(TooFewClients, match=r"site 0 rejected: class-sums: must have shape \(\d, 9\), got \(\d, 8\)"):
        strategy.start(CLIENTS.client_grid())


def test_the_hook_sees_each_client_as_it_is_folded() -> None:
    strategy = strategy_for("fedncm")
    seen: list[tuple[int, bool]] = []
    strategy.on_reply = lambda outcome, received: seen.append((outcome.client, received is not None))

    strategy.start(Clients(broken={5: ValueError()}).client_grid())

    assert seen == [(client, client != 5) for client in range(14)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"min_clients": 0}, "min_clients must be at least 1"),
        ({"wire_dtype": "float8"}, "wire_dtype must be one of"),
        ({"seed": -1}, "seed must lie in"),
        ({"class_names": ("a",)}, "class_names must name all 6 classes, got 1"),
    ],
)
def test_options_out_of_range_are_errors(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        FedNCM(NUM_CLASSES, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("several", "reason"),
    [
        ([], "at least one"),
        ([FedNCM(6), FedNCM(6)], "of different names"),
        ([FedNCM(6), FedCOF(5)], "must all have 6 classes"),
    ],
)
def test_one_pass_takes_different_methods_of_the_same_classes(several: list[FedNCM], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        OnePass(6, several)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_method_has_a_class_with_its_options(method: type[Method[Options]]) -> None:
    kind = getattr(strategies, method.display_name)
    options = {one.name: one.default for one in method.options_type.keys().values()}
    arguments = inspect.signature(kind).parameters
    assert {name: arguments[name].default for name in options} == options
    assert set(arguments) - set(options) <= {"num_classes", "means_per_class", "samples_per_mean", "options"}
    assert all(f"{name} : " in kind.__doc__ for name in options)
    for served in configured(method.name):
        assert copy.deepcopy(kind(3, **vars(served.options))).methods()[method.name].options == served.options
    assert repr(kind(3)) == f"{method.display_name}(3)"


def test_arguments_that_are_passed_on_are_those_of_the_base_class() -> None:
    arguments = inspect.signature(strategies.StatisticsStrategy).parameters
    assert set(StrategyOptions.__annotations__) == set(arguments) - {"num_classes", "methods"}


def test_a_misspelt_argument_is_named_with_the_nearest_by_the_class_that_was_called() -> None:
    class Mine(FedCOF):
        """Of a user."""

    with pytest.raises(TypeError, match=r"^Mine has no argument 'shrinkge' \(did you mean shrinkage\?\)$"):
        Mine(3, shrinkge=3)
    with pytest.raises(TypeError, match=r"^OnePass has no argument 'min_client' \(did you mean min_clients\?\)$"):
        OnePass(3, [FedNCM(3)], min_client=3)


def test_names_are_listed_before_their_import() -> None:
    assert {"Fed3R", "FedMeZO"} < set(dir(strategies))


def test_a_second_start_asks_nobody_again() -> None:
    strategy, grid = strategy_for("fedncm"), CLIENTS.client_grid()
    first = run(strategy, grid)

    assert run(strategy, grid) == first
    assert grid.inner.clients_requested == CLIENTS.num_clients  # type: ignore[attr-defined]


def test_the_result_is_the_head() -> None:
    strategy = strategy_for("fed3r")

    result = strategy.start(ClientGrid(CLIENTS.local_grid(None)))

    weight = result.arrays["weight"].numpy()
    assert weight.shape == (NUM_CLASSES, DIM) and weight.dtype == np.float64
    assert np.array_equal(weight, strategy.head.weight.numpy())
    assert np.array_equal(result.arrays["bias"].numpy(), strategy.head.bias.numpy())
    metrics = result.train_metrics_clientapp[1]
    assert metrics["num-examples"] == 12 * 14 and metrics["num-failed"] == 0
    assert metrics["wire-bytes"] == sum(outcome.wire_bytes for outcome in strategy.outcomes)
    assert all(outcome.seconds == 0.25 for outcome in strategy.outcomes)


FIVE = Clients(5)
own_app = ClientApp()


@own_app.query("statistics")
def own_statistics(msg: Message, context: Context) -> Message:
    request = read_statistics_request(msg)
    features, labels = FIVE.part(int(context.node_config["site"]))
    return statistics_reply(msg, request.statistics(features, labels))


@own_app.evaluate()
def own_evaluation(msg: Message, context: Context) -> Message:
    assert msg.content["config"]["server-round"] == 1 and msg.content["config"]["k"] == 5  # type: ignore[index]
    head = LinearHead(**msg.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    features, labels = FIVE.part(int(context.node_config["site"]))
    right = (head.predict(features) == labels).sum() / max(len(labels), 1)
    return metrics_reply(msg, Score(len(labels), float(right)))


@dataclass(frozen=True)
class Score:
    num_examples: int
    accuracy: float


def own_grid(app: ClientApp = own_app) -> LocalGrid:
    return LocalGrid(app, [{"site": site} for site in range(5)], shuffle_seed=2)


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_is_served_as_our_own(name: str) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    ours, theirs = strategy_for(name), strategy_for(name)
    ours.start(FIVE.client_grid())

    result = theirs.start(own_grid())

    assert {outcome.outcome for outcome in theirs.outcomes} == {"merged"} and len(theirs.outcomes) == 5
    for method, head in theirs.heads.items():
        assert torch.equal(head.weight, ours.heads[method].weight)
        prefix = f"{method}." if len(theirs.heads) > 1 else ""
        assert torch.equal(torch.from_numpy(result.arrays[f"{prefix}weight"].numpy()), head.weight)


def test_its_evaluation_is_asked_for_with_a_config() -> None:
    strategy = strategy_for("fed3r")
    result = strategy.start(own_grid(), evaluate_config=ConfigRecord({"k": 5}))
    accuracy = float((strategy.head.predict(FIVE.features) == FIVE.labels).double().mean())
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(accuracy)
    assert not strategy_for("fed3r").start(own_grid()).evaluate_metrics_clientapp


@pytest.mark.parametrize("mod", [message_size_mod, arrays_size_mod])
def test_mods_of_flower_that_measure_work(mod: Mod) -> None:
    app = ClientApp(mods=[mod])
    app.query("statistics")(own_statistics)
    strategy = strategy_for("one pass")
    strategy.start(own_grid(app))
    assert {outcome.outcome for outcome in strategy.outcomes} == {"merged"}


def test_mods_of_flower_for_privacy_are_refused_by_name() -> None:
    app = ClientApp(mods=[LocalDpMod(1.0, 1.0, 1.0, 0.1)])
    app.query("statistics")(own_statistics)
    with pytest.raises(TooFewClients, match="LocalDpMod"):
        strategy_for("fedncm").start(own_grid(app))


@pytest.mark.parametrize("make", [lambda: strategy_for("fedncm"), lambda: FedMeZO(NUM_CLASSES)], ids=["fedncm", "mezo"])
@pytest.mark.parametrize(
    "wrapper", [DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyServerSideFixedClipping]
)
def test_wrappers_of_flower_for_privacy_are_refused_by_name(make: Callable[[], Strategy], wrapper: Any) -> None:
    weight, bias = torch.zeros(NUM_CLASSES, DIM), torch.zeros(NUM_CLASSES)
    arrays = ArrayRecord({"weight": to_array(weight), "bias": to_array(bias)})
    with pytest.raises(TypeError, match=f"^{wrapper.__name__} makes nothing private here"):
        wrapper(make(), 0.1, 1.0, 5).start(own_grid(), arrays, num_rounds=1)


def test_one_of_them_that_answers_nothing_we_know_is_refused_by_name() -> None:
    app = ClientApp()

    @app.query("statistics")
    def statistics(msg: Message, context: Context) -> Message:
        if context.node_config["site"] == 3:
            return Message(msg.content, reply_to=msg)
        return own_statistics(msg, context)

    strategy = strategy_for("fedncm")
    strategy.start(own_grid(app))

    refused = [outcome for outcome in strategy.outcomes if outcome.outcome != "merged"]
    assert [(outcome.client, outcome.outcome) for outcome in refused] == [(FIRST_NODE_ID + 3, "rejected")]
    assert "missing ['metrics', 'statistics'], unexpected ['request']" in refused[0].reason
