"""FedRoot at other ranks: every point is what a run at that rank would have had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedstats_app.server import rank_curve
from tests.support.simulation import nodes_of, read_json, simulate

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
