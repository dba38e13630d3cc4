"""A run whose features are cached does not time the network."""

from pathlib import Path

import pytest

from fedstats_app.server import machine
from tests.support.simulation import simulate


def test_the_network_is_timed_in_the_first_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed, real = [], machine.seconds_per_sample
    monkeypatch.setattr(machine, "seconds_per_sample", lambda *args: timed.append(1) or real(*args))  # type: ignore[func-returns-value]
    for _ in range(2):
        simulate(
            tmp_path, method="fedncm", cache_dir=str(tmp_path / "cache"), partitioner="dirichlet@samples-per-class=20"
        )
    assert len(timed) == 1
