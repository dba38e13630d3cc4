"""Several ranks from one pass of Gram matrices: each is what it alone would have been."""

import pytest

from fedstats_app.methods import METHODS
from fedstats_app.rank_rule import OverBudget, RankRule
from fedstats_app.server.rank_curve import CURVE, RankCurve
from fedstats_app.statistics import ClientStatistics, ScatterSpec
from fedstats_app.strategies import Fed3R, FedNCM, FedRoot
from tests.support.clients import NUM_CLASSES, Clients
from tests.support.compare import relative_difference

CLIENTS = Clients()


def test_every_rank_of_the_curve_is_what_it_alone_would_have_been() -> None:
    curve, exact = RankCurve(), Fed3R(NUM_CLASSES, ridge_lambda="auto")
    exact.on_reply = lambda outcome, received: curve.add(received) if received else None
    exact.start(CLIENTS.client_grid())

    assert [str(spec.rank) for spec in CURVE] == [
        *("0 sqrt(n)", "0.5 sqrt(n)", "sqrt(n)", "2 sqrt(n)", "4 sqrt(n)", "full")
    ]
    for spec in CURVE:
        alone = FedRoot(NUM_CLASSES, rank=str(spec.rank), factor_dtype="float16")
        alone.start(CLIENTS.client_grid())
        found, expected = curve.low_rank(spec), alone.statistics().low_rank()
        size = float(CLIENTS.features.square().sum())
        assert relative_difference(found.scatter, expected.scatter, scale=size) < 1e-4
        assert found.left_out == pytest.approx(expected.left_out, abs=1e-4 * size)
        assert curve.wire_bytes(spec) == alone.wire_bytes("fedroot")
        solved = METHODS["fedroot"].configured()
        assert METHODS["fedroot"].complete is not None
        head = METHODS["fedroot"].solve(METHODS["fedroot"].complete(found), solved.options)
        assert relative_difference(head.weight, alone.head.weight) < 1e-3
    costs = [curve.wire_bytes(spec) for spec in CURVE]
    assert costs == sorted(costs) and costs[0] < costs[-1]


def test_the_exact_factor_is_made_once_for_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    of_gram = ClientStatistics.scatter_factor.__globals__["ScatterFactor"].of_gram
    monkeypatch.setattr(
        "fedstats_app.statistics.client_statistics.ScatterFactor.of_gram",
        lambda gram, rows: made.append(1) or of_gram(gram, rows),
    )
    curve, exact = RankCurve(), Fed3R(NUM_CLASSES)
    exact.on_reply = lambda outcome, received: curve.add(received) if received else None
    exact.start(CLIENTS.client_grid())
    curve.finish()
    assert len(made) == CLIENTS.num_clients


def test_without_a_gram_matrix_there_is_no_curve() -> None:
    curve, strategy = RankCurve(), FedNCM(NUM_CLASSES)
    strategy.on_reply = lambda outcome, received: curve.add(received) if received else None
    with pytest.raises(ValueError, match="needs statistics with a Gram matrix, got none"):
        strategy.start(CLIENTS.client_grid())


def test_what_a_rank_could_not_be_made_with_is_said_at_the_latest_when_its_sum_is_needed() -> None:
    curve, exact = RankCurve(specs=[spec := ScatterSpec(RankRule("bytes", 1.0))]), Fed3R(NUM_CLASSES)
    clients = Clients(num_clients=2)
    exact.on_reply = lambda outcome, received: curve.add(received) if received else None
    exact.start(clients.client_grid())
    for look in (curve.state, lambda: curve.low_rank(spec), lambda: curve.wire_bytes(spec)):
        with pytest.raises(OverBudget, match="at most 1 bytes"):
            look()
