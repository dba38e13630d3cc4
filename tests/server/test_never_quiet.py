"""Every stage of a run says at least every ten seconds what it does, with clients and a server that take their time."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message

from fedstats_app import client_app, server_app
from fedstats_app.server import closed_form, run, training
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire.serving import clients_in
from tests.support.clock import Clock, Said
from tests.support.simulation import simulate

SECONDS_PER_CLIENT, SECONDS_OF_SERVER = 11.0, 35.0
# What the server computes by itself: where the function is used, its name, and what is said meanwhile.
SLOW = [
    (run, "partitions", "loading the data and splitting it"),
    (run, "discover", "waiting for SuperNodes"),
    (run, "loaded_backbone", "loading backbone random:tiny"),
    (run, "test_split", "loading the data and splitting it"),
    (StatisticsStrategy, "solve", ""),
    (closed_form, "save_statistics", "writing the statistics"),
    (closed_form, "score", "evaluating"),
    (closed_form, "examine_clients", "measuring what each site changes"),
    (closed_form, "_save_heads", ""),
    (training, "evaluate", "evaluating on the test samples"),
]


def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: list[tuple[Any, str, str]] = SLOW, **settings: object
) -> Said:
    """Run the app by a clock of its own, and return what was said."""
    clock = Clock()
    said = Said(clock)
    monkeypatch.setattr(server_app, "Progress", lambda: said)
    for owner, name, words in slow:
        monkeypatch.setattr(owner, name, _slowed(getattr(owner, name), words, said))

    def app(msg: Message, context: Context) -> Message:
        clock.sleep(SECONDS_PER_CLIENT * clients_in(msg))
        return client_app.app(msg, context)

    simulate(tmp_path, app=app, num_clients=6, **settings)
    return said


def _slowed(function: Any, words: str, said: Said) -> Any:
    def slow(*arguments: Any, **named: Any) -> Any:
        started = said.clock()
        said.clock.sleep(SECONDS_OF_SERVER)
        assert words in said.between(started, said.clock())
        return function(*arguments, **named)

    return slow


def test_statistics_solving_and_probing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"fine_tune": "probe", "start_head": "fed3r", "num_server_rounds": 2}
    said = told(tmp_path, monkeypatch, method="fed3r,fedroot", **settings)
    assert said.longest_silence <= 10
    lines = said.between(0, said.clock())
    assert "solving" in lines and "3 of 6 sites answered" in lines
    assert "fed3r-probe: 330 parameters are trained in 2 rounds over 6 sites with 1,000 samples" in lines
    assert "fed3r-probe: round 1 of 2: 3 of 6 sites answered" in lines and "round 2 of 2" in lines


def test_every_phase_of_secure_sums_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"secure_sums": "on", "partitioner": "iid", "partition.samples-per-class": 60}
    said = told(tmp_path, monkeypatch, [], method="fed3r,fedcof", **settings)
    assert said.longest_silence <= 10
    lines = said.between(0, said.clock())
    phases = ("exchanging keys", "exchanging shares of keys", "secure sum (sums)")
    starts = [lines.index(f"statistics: {phase}: ") for phase in phases]
    assert starts == sorted(starts) and f"{phases[1]}: 0 of 6 sites answered" in lines
    assert f"{phases[2]}, taking the masks off: 0 of 6 sites answered" in lines
    assert f"{phases[2]}: 0 of 6 sites answered" in lines
    assert not [line for _, line in said.lines if line.startswith("statistics: 0 of")]
