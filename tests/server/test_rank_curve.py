"""FedRoot at other ranks, from one pass of Gram matrices: each is what a run at that rank would have had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedstats_app.methods import METHODS
from fedstats_app.rank_rule import OverBudget, RankRule
from fedstats_app.server import rank_curve
from fedstats_app.server.rank_curve import CURVE, RankCurve
from fedstats_app.statistics import ClientStatistics, ScatterSpec
from fedstats_app.strategies import Fed3R, FedNCM, FedRoot
from tests.support.clients import NUM_CLASSES, Clients
from tests.support.compare import relative_difference
from tests.support.simulation import nodes_of, read_json, simulate

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
    assert len(made) == CLIENTS.num_clients


def test_without_a_gram_matrix_there_is_no_curve() -> None:
    curve, strategy = RankCurve(), FedNCM(NUM_CLASSES)
    strategy.on_reply = lambda outcome, received: curve.add(received) if received else None
    with pytest.raises(ValueError, match="needs statistics with a Gram matrix, got none"):
        strategy.start(CLIENTS.client_grid())


def test_a_client_whose_rows_alone_exceed_the_bytes_of_a_rank_ends_the_pass() -> None:
    curve, exact = RankCurve(specs=[ScatterSpec(RankRule("bytes", 1.0))]), Fed3R(NUM_CLASSES)
    exact.on_reply = lambda outcome, received: curve.add(received) if received else None
    with pytest.raises(OverBudget, match="at most 1 bytes"):
        exact.start(Clients(num_clients=2).client_grid())


FEDROOT = "fedroot@factor-dtype=float32@head=within"
OPTIONS = {"fedroot_rank": "0.5 sqrt(n)", "method": f"fed3r,{FEDROOT}", "wire_dtype": "float32"}


def curve_of(folder: Path) -> list[dict[str, Any]]:
    curves = read_json(folder, "results.json")["curve"]
    assert set(curves) <= {"fedroot", FEDROOT}
    return [point for curve in curves.values() for point in curve]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("together"), **OPTIONS)


def test_the_point_at_the_runs_own_rank_is_fedroots_own(together: Path) -> None:
    points, own = curve_of(together), read_json(together, "results.json")["methods"][FEDROOT]
    ranks = [point["rank"] for point in points]
    assert ranks == ["0 sqrt(n)", "0.5 sqrt(n)", "sqrt(n)", "2 sqrt(n)", "4 sqrt(n)", "full"]
    assert points[1] == {"rank": "0.5 sqrt(n)", "wire_bytes": own["wire_bytes"], "accuracy": own["accuracy"]}


@pytest.mark.parametrize("rank", ["0 sqrt(n)", "2 sqrt(n)"])
def test_every_point_has_bytes_and_accuracy_of_a_run_at_its_rank(together: Path, tmp_path: Path, rank: str) -> None:
    (point,) = (point for point in curve_of(together) if point["rank"] == rank)
    alone = simulate(tmp_path, **{**OPTIONS, "fedroot_rank": rank, "method": FEDROOT})
    found = read_json(alone, "results.json")["methods"][FEDROOT]
    assert point["wire_bytes"] == found["wire_bytes"]
    assert point["accuracy"] == pytest.approx(found["accuracy"], abs=2e-3)  # Gram matrices are rounded to float32
    assert curve_of(alone) == []


def test_a_rank_that_is_not_among_the_curves_has_its_place_by_bytes(tmp_path: Path) -> None:
    points = curve_of(simulate(tmp_path, method="fed3r,fedroot", fedroot_rank="3KB"))
    assert {point["rank"] for point in points} == {
        *("3KB", "0 sqrt(n)", "0.5 sqrt(n)", "sqrt(n)", "2 sqrt(n)", "4 sqrt(n)", "full")
    }
    assert [point["wire_bytes"] for point in points] == sorted(point["wire_bytes"] for point in points)


def test_clients_asked_in_several_rounds_are_all_in_the_curve(together: Path, tmp_path: Path) -> None:
    rounds = simulate(tmp_path, **OPTIONS, fraction_train=0.3)
    bytes_by_rank = [{point["rank"]: point["wire_bytes"] for point in curve_of(one)} for one in (rounds, together)]
    assert bytes_by_rank[0] == bytes_by_rank[1]


@pytest.mark.parametrize("method", ["fedroot,fedcof", "fed3r,fedcgs"])
def test_without_fedroot_or_gram_matrices_there_is_no_curve(tmp_path: Path, method: str) -> None:
    assert read_json(simulate(tmp_path, method=method), "results.json")["curve"] == {}


def test_without_test_data_of_the_server_there_is_no_curve(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, "ab", ("ant", "bee"), images=12)
    results = read_json(simulate(tmp_path, node_configs=nodes), "results.json")
    assert results["evaluated_on"] == "clients" and results["curve"] == {}


def test_a_run_that_extends_another_has_no_curve(tmp_path: Path) -> None:
    options = {"method": "fed3r,fedroot", "save_statistics": True}
    first = simulate(tmp_path, **options)
    second = simulate(tmp_path, **options, seed=1, extend=str(first))
    assert len(curve_of(first)) == 6 and curve_of(second) == []


def test_with_too_many_features_there_is_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_curve, "MAX_FEATURE_DIM", 31)  # the tiny backbone has 32
    assert curve_of(simulate(tmp_path, method="fed3r,fedroot")) == []


def test_a_resumed_run_keeps_its_curve(together: Path) -> None:
    before = curve_of(together)
    simulate(together.parent.parent, **OPTIONS, resume=str(together))
    assert curve_of(together) == before and len(before) == 6
