"""FedRoot over a grid: exact at full rank, alone or made of Gram matrices, in one run or two, and within a budget."""

from typing import Any

import pytest

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.heads.fedroot import solve_completed
from fedstats_app.statistics import ScatterSpec, StatisticsSpec, merge_specs
from fedstats_app.statistics.collected import CollectedStatistics
from fedstats_app.strategies import Fed3R, FedCOF, FedNCM, FedRoot, OnePass
from tests.support.clients import DIM, NUM_CLASSES, Clients
from tests.support.compare import relative_difference

CLIENTS = Clients()
NAMES = tuple("abcdef")


def started(strategy: Any, clients: Clients = CLIENTS) -> Any:
    strategy.start(clients.client_grid())
    return strategy


def test_a_lower_rank_costs_less_and_stays_close() -> None:
    exact = solve_completed(started(Fed3R(NUM_CLASSES)).collection.total.summed()).predict(CLIENTS.features)
    costs, shares = [], []
    for rank in ("0", "0.5 sqrt(n)", "sqrt(n)", "full"):
        root = started(FedRoot(NUM_CLASSES, rank=rank))
        costs.append(root.wire_bytes("fedroot"))
        shares.append(float((root.head.predict(CLIENTS.features) == exact).double().mean()))
    assert costs == sorted(set(costs)) and shares[-1] == max(shares) >= 0.99 and min(shares) > 0.7


def test_it_shares_one_pass_with_those_that_need_gram_matrices() -> None:
    strategies = [FedNCM(NUM_CLASSES), Fed3R(NUM_CLASSES), FedRoot(NUM_CLASSES)]
    together, alone = started(OnePass(NUM_CLASSES, strategies)), started(FedRoot(NUM_CLASSES))

    spec = together.request.spec
    assert spec.gram and spec.scatter is not None
    assert together.wire_bytes("fedroot") == alone.wire_bytes("fedroot") == alone.collection.total_wire_bytes
    assert together.collection.total_wire_bytes == together.wire_bytes("fed3r")
    assert relative_difference(together.heads["fedroot"].weight, alone.head.weight) < 1e-4
    assert together.heads["fed3r"].weight.equal(started(Fed3R(NUM_CLASSES)).head.weight)


def test_several_means_of_another_method_serve_it_too() -> None:
    together = started(OnePass(NUM_CLASSES, [FedCOF(NUM_CLASSES, means_per_class=3), FedRoot(NUM_CLASSES)]))
    alone = started(FedRoot(NUM_CLASSES, means_per_class=3))

    assert together.heads["fedroot"].weight.equal(alone.head.weight)
    assert together.wire_bytes("fedroot") == alone.wire_bytes("fedroot")


@pytest.mark.parametrize("gram", [False, True])
def test_two_runs_are_one(gram: bool) -> None:
    def strategy() -> Any:
        root = FedRoot(NUM_CLASSES)
        return OnePass(NUM_CLASSES, [Fed3R(NUM_CLASSES), root]) if gram else root

    half = {client: ValueError("later") for client in range(7)}
    other = {client: ValueError("earlier") for client in range(7, 14)}
    first = started(strategy(), Clients(broken=half))
    earlier: CollectedStatistics = first.collection.collected(NAMES, "1")
    second = strategy()
    second.extend(earlier)
    started(second, Clients(broken=other))
    whole = started(strategy())

    for one in second.heads:
        assert relative_difference(second.heads[one].weight, whole.heads[one].weight) < 1e-10
    found, expected = (run.collection.total.low_rank() for run in (second, whole))
    assert relative_difference(found.scatter, expected.scatter) < 1e-12
    assert found.left_out == pytest.approx(expected.left_out, rel=1e-12)


def test_what_was_collected_of_another_rank_cannot_be_extended() -> None:
    first = started(FedRoot(NUM_CLASSES))
    with pytest.raises(ValueError, match="of another kind: statistics"):
        FedRoot(NUM_CLASSES, rank="2 sqrt(n)").extend(first.collection.collected(NAMES, "1"))


def test_clients_whose_rows_alone_exceed_the_budget_are_named_and_the_run_goes_on() -> None:
    strategy = started(FedRoot(NUM_CLASSES, rank="1KB"))

    failed = [outcome for outcome in strategy.outcomes if outcome.outcome != "merged"]
    merged = [outcome for outcome in strategy.outcomes if outcome.outcome == "merged"]
    assert failed and merged and all(outcome.wire_bytes <= 1000 for outcome in merged)
    assert all("at most 1,000 bytes (rank 1KB), got 1," in outcome.reason for outcome in failed)
    assert {outcome.outcome for outcome in failed} == {"refused"}


def test_factors_of_few_samples_are_warned_of() -> None:
    warned = {outcome.num_examples: outcome.warning for outcome in started(FedRoot(NUM_CLASSES)).outcomes}
    for num_examples, warning in warned.items():
        assert ("its factor of the scatter of" in warning) == (0 < num_examples < 2 * DIM)
    assert any(warned.values()) and not all(warned.values())


def spec_of(rank: str, dtype: str = "float16", **others: Any) -> StatisticsSpec:
    return StatisticsSpec(scatter=ScatterSpec(RankRule.parse(rank), dtype), **others)


def test_specifications_say_what_covers_a_factor() -> None:
    root, gram = spec_of("sqrt(n)"), StatisticsSpec(gram=True)
    both = merge_specs([root, gram])
    assert both == merge_specs([gram, root]) == spec_of("sqrt(n)", gram=True)
    assert both.covers(root) and both.covers(gram) and root.covers(StatisticsSpec())
    assert not gram.covers(root) and not root.covers(gram) and not root.covers(spec_of("full"))
    assert root.sends_scatter and not both.sends_scatter and not gram.sends_scatter
    for spec in (root, both, gram, spec_of("90%", "float32", means_per_class=4)):
        assert StatisticsSpec.from_dict(spec.to_dict()) == spec
    for other in (spec_of("full"), spec_of("sqrt(n)", "float32")):
        with pytest.raises(ValueError, match="one pass serves one factor of the scatter"):
            merge_specs([root, other])
