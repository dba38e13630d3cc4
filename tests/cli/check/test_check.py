"""`fedstats check`: every mistake that a user can make before `flwr run`, and the sentence that answers it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.cli import main
from tests.data.test_folder_layout import tree

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_ports: tuple[int, int]) -> Path:
    """A folder without the app, where nobody has the port of Flower's local SuperLink."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(unused_ports[0]))
    monkeypatch.setenv("FLWR_LOCAL_CONTROL_API_PORT", str(unused_ports[1]))
    monkeypatch.setenv("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def check(capsys: Capture, *words: str) -> tuple[int, list[dict[str, Any]]]:
    code = main(["check", *words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is (code == 0)
    return code, document["findings"]


def failures(capsys: Capture, *words: str) -> list[str]:
    """Return what fails, as "check: message"."""
    code, found = check(capsys, *words)
    assert code == 1
    return [f"{one['check']}: {one['message']}" for one in found if one["level"] == "FAIL"]


MISTAKES = [
    ("num-client=20", "run-config: num-client: no such key; did you mean num-clients?"),
    ("method='fedcoff'", "run-config: method: must be all, or some of fedncm, fed3r, fedcof, fedcgs, fedroot, "),
    ("backbone='resnet19'", "(did you mean resnet18?), got 'resnet19'"),
    ("num-clients=many", "num-clients: must be a whole number from 0 to 1000000, got many"),
    ("fed3r@normalize=false", "fed3r@normalize=false is a method with an option: method='fed3r@normalize=false'"),
    ("method=fedcof", "method: 'fedcof' is no TOML value; text stands in quotes: method='fedcof'"),
    ("num-clients 20", "settings: 'num-clients' is no KEY=VALUE, and Flower would leave it out without a word"),
    ("num-clients='20'", "num-clients: must be a whole number from 0 to 1000000, got '20'"),
    ("dataset='folder:photos'", f"dataset: must name an absolute path, such as folder:{os.sep}"),
    ("dataset='folder:/no/such/place'", "data: folder:/no/such/place: nothing is at /no/such/place"),
    ("dataset='/no/such/place'", "data: folder:/no/such/place: nothing is at /no/such/place"),
    ("test-dataset='csv:/no/such/place'", "data: csv:/no/such/place: nothing is at /no/such/place"),
    ("backbone-weights='/no/such.pth'", "backbone: backbone-weights: nothing is at /no/such.pth"),
    ("resume='/no/such/run'", "run folder: resume: nothing is at /no/such/run"),
    ("extend='/no/such/run'", "run folder: extend: nothing is at /no/such/run"),
    ("method='fedcof' start-head='fed3r' fine-tune='probe'", "start-head: method must name fed3r too"),
]


def test_a_mistake_in_the_node_config_is_named(place: Path, capsys: Capture) -> None:
    tree(place / "photos", "cat", "dog")
    assert check(capsys, "--node-config", "data-path='photos' min-class-count=8")[0] == 0
    found = failures(capsys, "--node-config", "data-path='photos' min-class-cont=8")
    assert found == ["node-config: min-class-cont: no such key; did you mean min-class-count?"]


@pytest.mark.parametrize(("settings", "message"), MISTAKES)
def test_a_mistake_is_named(settings: str, message: str, capsys: Capture) -> None:
    found = failures(capsys, "--run-config", settings)
    assert any(message in one for one in found), found


@pytest.mark.parametrize("key", ["dataset", "test-dataset"])
def test_folders_that_a_run_would_ask_about_are_asked_about(key: str, tmp_path: Path, capsys: Capture) -> None:
    tree(tmp_path / "data", "photo/cat", "photo/dog", "sketch/cat", "sketch/dog")
    [found] = failures(capsys, "--run-config", f"{key}='folder:{tmp_path / 'data'}'")
    assert found.startswith(f"data: folder:{tmp_path / 'data'}: ")
    assert "Which are the classes? Set folder-levels" in found
    assert check(capsys, f"{key}='folder:{tmp_path / 'data'}'", "folder-levels='domain/class'")[0] == 0


def test_all_mistakes_are_named_at_once(capsys: Capture) -> None:
    found = failures(capsys, "--run-config", "num-client=20 seeed=1 method='fedcoff'")
    assert [one.split()[1] for one in found] == ["num-client:", "seeed:", "method:"]


@pytest.mark.parametrize(
    ("settings", "library", "extra"),
    [
        ("backbone='timm:resnet10t'", "timm", "timm"),
        ("backbone='vision:some/model'", "transformers", "vision"),
        ("backbone='sentence:some/model'", "transformers", "text"),
    ],
)
def test_a_missing_extra(
    settings: str, library: str, extra: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstats_app.cli.check.installed_version", lambda name: "" if name == library else "1")
    [found] = failures(capsys, "--run-config", settings)
    assert f"needs {library}, which is not installed" in found
    _, findings = check(capsys, "--run-config", settings)
    assert [one["advice"] for one in findings if one["level"] == "FAIL"] == [f'pip install "fedstats-app[{extra}]"']


def test_files_of_settings(place: Path, capsys: Capture) -> None:
    (place / "good.toml").write_text("num-clients = 20\n")
    (place / "bad.toml").write_text("num-clint = 20\n")
    (place / "worse.toml").write_text("num-clients = \n")
    assert check(capsys, "good.toml")[0] == 0
    assert check(capsys, "-c", "num-clients=20 method='fedncm,fedcof'", "-c", "seed=3")[0] == 0
    assert "num-clint: no such key; did you mean num-clients?" in failures(capsys, "bad.toml")[0]
    assert "settings: worse.toml: Invalid value" in failures(capsys, "worse.toml")[0]
    assert "settings: no.toml: nothing is there" in failures(capsys, "no.toml")[0]
    assert "either one TOML file or KEY=VALUE words" in failures(capsys, "good.toml", "seed=1")[0]


def test_the_command_to_run_is_the_last_line(place: Path, capsys: Capture) -> None:
    (place / "my settings.toml").write_text("num-clients = 20\n")
    for words in (
        ["my settings.toml"],
        ["-c", "num-clients=20 method='fedcof'"],
        ["num-clients=20", "method='fedcof'"],
    ):
        assert main(["check", *words]) == 0
        found = shlex.split(capsys.readouterr().out.splitlines()[-1])
        assert found[:2] == ["flwr", "run"] and "--stream" in found
        given = found[found.index("--run-config") + 1 :]
        assert given == (words if words[0].endswith("toml") else ["num-clients=20 method='fedcof'"])
    assert main(["check", "sead=1"]) == 1 and "flwr run" not in capsys.readouterr().out.splitlines()[-1]


def test_it_imports_neither_torch_nor_flower() -> None:
    program = (
        "import sys\nfrom fedstats_app.cli import main\ncode = main(['check', 'num-clients=20'])\n"
        "print(code, sorted({'torch', 'flwr', 'ray', 'torchvision', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout + done.stderr
