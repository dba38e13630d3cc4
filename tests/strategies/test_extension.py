"""A later run that adds clients and classes to an earlier one ends where one run with everybody would have."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.report.statistics_file import load_statistics, save_statistics
from fedstats_app.statistics.collected import StatisticsSum
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
from fedstats_app.wire import guard, per_client, read_statistics_request, statistics_reply
from tests.support.clients import NUM_CLASSES, STRATEGIES, Clients
from tests.support.compare import relative_difference

CLIENTS = Clients()
ALL = range(CLIENTS.num_clients)
NAMES = tuple("abcdef")
LAST_CLASS = NUM_CLASSES - 1
# Whoever has no sample of the last class can be in a run that does not know it.
EARLY = [client for client in ALL if LAST_CLASS not in CLIENTS.part(client)[1].tolist()]
LATE = [client for client in ALL if client not in EARLY]


def federation(clients: Sequence[int], names: tuple[str, ...]) -> ClientGrid:
    """Return some of the clients; each numbers its classes as the names sent along do."""
    app = ClientApp(mods=[guard])

    @app.query("statistics")
    @per_client
    def statistics(msg: Message, context: Context, client_id: int | None) -> Message:
        assert client_id is not None
        request = read_statistics_request(msg)
        features, labels = CLIENTS.part(client_id)
        ids = torch.tensor([request.class_names.index(NAMES[label]) for label in labels.tolist()], dtype=torch.int64)
        return statistics_reply(msg, request.statistics(features, ids), backbone_fingerprint="f")

    hosts = {client: FIRST_NODE_ID + client % 2 for client in clients}
    return ClientGrid(LocalGrid(app, [{}, {}]), hosts)


def strategy_for(method: str, names: tuple[str, ...], **options: object) -> StatisticsStrategy:
    defaults = {"wire_dtype": "float64", "class_names": names, "backbone_fingerprint": "f"}
    return STRATEGIES[method](len(names), **(defaults | options))


def run(method: str, clients: Sequence[int], names: tuple[str, ...], **options: object) -> StatisticsStrategy:
    strategy = strategy_for(method, names, **options)
    strategy.start(federation(clients, names))
    return strategy


def by_class(total: StatisticsSum, names: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.tensor([names.index(name) for name in sorted(names)])
    summed = total.summed()
    return summed.class_counts[order], summed.class_sums[order]


@pytest.mark.parametrize("method", STRATEGIES)
def test_two_runs_are_one(method: str, tmp_path: Path) -> None:
    """The earlier run knows five classes; the later one has them in another order, a new one among them."""
    assert EARLY and LATE
    before, after = NAMES[:-1], ("f", "e", "d", "c", "b", "a")
    save_statistics(tmp_path, run(method, EARLY, before).collection.collected(before, "17"))

    second = strategy_for(method, after)
    second.extend(load_statistics(tmp_path).with_class_names(after))
    second.start(federation(LATE, after))
    whole = run(method, ALL, NAMES)

    assert second.collection.num_merged == len(ALL)
    assert second.collection.num_examples == whole.collection.num_examples == len(CLIENTS.labels)
    found, expected = second.collection.total, whole.collection.total
    assert (found.num_rows, found.num_pairs) == (expected.num_rows, expected.num_pairs)
    counts, sums = by_class(found, after)
    expected_counts, expected_sums = by_class(expected, NAMES)
    assert torch.equal(counts, expected_counts) and relative_difference(sums, expected_sums) < 1e-12
    gram, expected_gram = found.summed().gram, expected.summed().gram
    assert (gram is None) == (expected_gram is None)
    assert gram is None or expected_gram is None or relative_difference(gram, expected_gram) < 1e-12
    for name in whole.methods():
        predicted = [after[index] for index in second.heads[name].predict(CLIENTS.features).tolist()]
        assert predicted == [NAMES[index] for index in whole.heads[name].predict(CLIENTS.features).tolist()], name


def test_who_is_in_already_is_not_counted_twice_and_is_named(tmp_path: Path) -> None:
    """Node ids are new, and so are class numbers and the wire's dtype; the client is known by what it sends."""
    save_statistics(tmp_path, run("one pass", EARLY, NAMES).collection.collected(NAMES, "17"))
    after = tuple(reversed(NAMES))
    second = strategy_for("one pass", after, wire_dtype="float32")
    second.extend(load_statistics(tmp_path).with_class_names(after))
    second.start(federation(ALL, after))

    whole = run("one pass", ALL, NAMES)
    known = {outcome.client: outcome for outcome in second.outcomes if outcome.outcome == "known"}
    with_samples = {client for client in EARLY if len(CLIENTS.part(client)[0])}
    assert set(known) == with_samples
    client = min(with_samples)
    reason = f"these very statistics are in those to extend already, as client {client} of run 17"
    assert known[client].reason == reason and known[client].num_examples == len(CLIENTS.part(client)[0])
    assert second.collection.num_examples == whole.collection.num_examples
    assert torch.equal(by_class(second.collection.total, after)[0], by_class(whole.collection.total, NAMES)[0])


@pytest.mark.parametrize(
    ("method", "names", "options", "reason"),
    [
        ("fedncm", (*NAMES, "g"), {}, "number of classes was 6, is 7"),
        ("fedncm", NAMES, {"backbone_fingerprint": "other"}, r"backbone \(fingerprint\) was f, is other"),
        ("fed3r", NAMES, {}, "statistics"),
        ("fedcof, several means", NAMES, {}, "statistics .*means_per_class=1.*means_per_class=3"),
        ("fedcof", NAMES, {}, r"rows kept was False, is True"),
    ],
)
def test_other_statistics(method: str, names: tuple[str, ...], options: dict[str, object], reason: str) -> None:
    collected = run("fedncm", [0, 1], NAMES).collection.collected(NAMES, "1")

    with pytest.raises(ValueError, match=f"of another kind: .*{reason}"):
        strategy_for(method, names, **options).extend(collected)


def test_a_run_that_adds_nobody_fails(tmp_path: Path) -> None:
    """The head of before would be passed off as that of this run."""
    collected = run("fedncm", [0, 1], NAMES).collection.collected(NAMES, "1")
    strategy = strategy_for("fedncm", NAMES, backbone_fingerprint="f")
    strategy.extend(collected)
    app = ClientApp(mods=[guard])

    with pytest.raises(TooFewClients, match="site 5 failed"):
        strategy.start(ClientGrid(LocalGrid(app, [{}]), {5: FIRST_NODE_ID}))
