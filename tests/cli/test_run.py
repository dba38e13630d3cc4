"""`fedstats run`: settings as `flwr run --run-config` takes them, exit codes, and one sentence for what is wrong."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.base.files import read_json_file
from fedstats_app.cli import main
from fedstats_app.cli import run as command
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.simulation import UnknownFlower

Capture = pytest.CaptureFixture[str]
Asked = list[tuple[Mapping[str, Any], int | None]]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without an app."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What is simulated, instead of simulating it."""
    seen: Asked = []
    monkeypatch.setattr(command, "run_on", lambda nodes, config: seen.append((config, len(nodes))))
    return seen


def test_words_override_files_wherever_they_stand(asked: Asked) -> None:
    Path("one.toml").write_text("seed = 1\nnum-clients = 20\n")
    words = ["-c", "seed=5 plots=false"]
    for settings in (["one.toml", *words], [*words, "one.toml"], [*words, "-c", "one.toml"]):
        assert main(["run", *settings, "--supernodes", "4"]) == 0
        assert asked.pop() == ({"seed": 5, "plots": False, "num-clients": 20}, 4)
    assert main(["run", "num-clients=10", "num-clients=30"]) == 0 and asked.pop() == ({"num-clients": 30}, 2)
    assert main(["run"]) == 0 and asked[0] == ({}, 2)


def test_rules_of_nodes_hold_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture) -> None:
    seen: list[list[Mapping[str, Any]]] = []
    monkeypatch.setattr(command, "run_on", lambda nodes, config: seen.append(nodes))
    rules = ("--node-config", "min-class-count=9")
    assert main(["run", *rules]) == 0
    assert seen[0] == [{"min-class-count": 9, "partition-id": node, "num-partitions": 2} for node in range(2)]
    north, south = "data-path='north' min-class-count=7", "data-path='/south'"
    assert main(["run", "--node-config", north, *rules, "--node-config", south]) == 0
    assert seen[1] == [
        {"data-path": str(tmp_path / "north"), "min-class-count": 7},
        {"data-path": "/south", "min-class-count": 9},
    ]
    assert main(["run", "--node-config", south, "--supernodes", "3"]) == 2
    assert "--supernodes is for a simulation" in capsys.readouterr().err


def test_defaults_are_those_of_the_app_in_this_folder(asked: Asked) -> None:
    assert main(["new", "app"]) == 0
    project = Path("app/pyproject.toml")
    project.write_text(
        project.read_text().replace("\nseed = 0 ", "\nseed = 7 ").replace("num-clients = 100 ", "num-clients = 9 ")
    )
    os.chdir("app")
    assert main(["run", "num-clients=5"]) == 0
    assert asked[0][0] == {**AppConfig().to_run_config(), "seed": 7, "num-clients": 5}
    project = Path("pyproject.toml")
    project.write_text(project.read_text().replace("fedstats_app.server_app:app", "another.server_app:app"))
    assert main(["run", "num-clients=5"]) == 0 and asked[1][0] == {"num-clients": 5}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["num-client=20"], "num-client: no such key; did you mean num-clients?"),
        (["--node-config", "min-class-cont=100"], "min-class-cont: no such key; did you mean min-class-count?"),
    ],
)
def test_wrong_settings_are_one_sentence(capsys: Capture, words: list[str], sentence: str) -> None:
    assert main(["run", *words]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err and "Traceback" not in printed.err and printed.out == ""


def test_backbones_are_a_run_each_and_the_largest_evidence_is_named(tmp_path: Path, capsys: Capture) -> None:
    few = "num-clients=2 partition.samples-per-class=5 input-size=8 plots=false method='fed3r'"
    settings = f"backbone='random:tiny,random:wide,random:tiny+random:wide' {few} output-dir='{tmp_path}'"
    assert main(["run", settings]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    runs = {
        read_json_file(path.parent / "config.json")["backbone"]["name"]: path
        for path in tmp_path.glob("*/results.json")
    }
    nats = {name: read_json_file(path)["evidence"]["nats"] for name, path in runs.items()}
    best = max(nats, key=lambda name: nats[name])
    assert len(nats) == 3 and f"50 samples, 10 classes: take {best}, in {runs[best].parent.name} (" in last
    assert main(["runs", str(tmp_path)]) == 0 and f"[fedstats] {capsys.readouterr().out.splitlines()[-1]}" == last


def test_a_comparison_is_refused_on_sites_and_with_settings_of_another_number(asked: Asked, capsys: Capture) -> None:
    two = "backbone='random:tiny,random:wide'"
    for words, sentence in (
        ([two, "--node-config", "data-path='/data'"], "every network is a further release of the sites"),
        ([f"{two} backbone-weights='/a,/b,/c'"], "backbone-weights: must be empty or 2"),
        (["backbone='random:tiny,wild'"], "must be one of efficientnet_lite0"),
    ):
        assert main(["run", *words]) == 2 and not asked
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (UnknownFlower("this needs Flower 1.41"), 2, "fedstats run: this needs Flower 1.41\n"),
        (KeyboardInterrupt(), 130, ""),  # the run's own last line says how to continue it
    ],
)
def test_another_flower_is_one_sentence_and_nothing_is_said_after_a_run_that_was_stopped(
    raised: BaseException, code: int, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_on(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(command, "run_on", run_on)
    assert main(["run"]) == code and capsys.readouterr().err == said


def test_a_run_that_fails_says_why_once(capsys: Capture, tmp_path: Path) -> None:
    settings = f"dataset='folder:/nowhere' output-dir='{tmp_path}' backbone='random:tiny'"
    assert main(["run", settings]) == 2
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.splitlines()[-1] == "[fedstats] FAILED: DatasetError: folder:/nowhere: nothing is at /nowhere"
    assert printed.out.count("FAILED") == 1
