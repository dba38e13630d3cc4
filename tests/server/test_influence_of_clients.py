"""A run writes down each client's shares and influence, with caps on shares or without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.simulation import clients, read_json, simulate


@pytest.mark.parametrize("settings", [{}, {"max_client_share": 0.3}], ids=["no caps", "caps"])
def test_shares_add_up_and_nobody_honest_is_named(tmp_path: Path, settings: dict[str, object]) -> None:
    folder = simulate(tmp_path, method="fedncm,fedcof", num_clients=5, **settings)

    lines = clients(folder)
    assert sum(line["share"] for line in lines) == pytest.approx(1.0, abs=1e-3)
    of_class = [line["class_shares"] for line in lines]
    for name in {name for shares in of_class for name in shares}:
        assert sum(shares.get(name, 0.0) for shares in of_class) == pytest.approx(1.0, abs=1e-3)
    assert all(-1.0 <= line["influence"] <= 1.0 for line in lines)
    assert read_json(folder, "results.json")["influential_clients"] == []
    if settings:
        assert max(line["share"] for line in lines) <= 0.31
