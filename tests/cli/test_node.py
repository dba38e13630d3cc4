"""`fedstats node`: what it takes itself, and what goes to Flower."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable

import pytest

from fedstats_app.cli import main
from fedstats_app.cli.supernode import flower
from fedstats_app.cli.supernode.flower import RuntimeAddress

DIGEST = "0123456789abcdef" * 4
RUNTIME = RuntimeAddress("127.0.0.1:9094")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[str]]]:
    """Collect the words of SuperNodes, each with those of its processes."""
    found: list[tuple[list[str], list[str]]] = []

    def run_supernode(words: list[str], command: Callable[[RuntimeAddress], list[str]]) -> None:
        found.append((words, command(RUNTIME)))

    monkeypatch.setattr(flower, "run_supernode", run_supernode)
    return found


@pytest.mark.parametrize(
    ("words", "more", "said"),
    [
        (["--node-config", 'data-path="/data"'], [], "fedstats node: runs fedstats-app "),
        (["--any-app"], ["--any-app"], "WARNING: --any-app: ANY CODE THAT THE SERVER SENDS runs here"),
        (
            ["--node-config", f'approved-apps="{DIGEST}" x=1'],
            ["--approved", DIGEST],
            "the code of 1 approved apps",
        ),
    ],
)
def test_processes_are_told_whose_code_runs(
    words: list[str],
    more: list[str],
    said: str,
    started: list[tuple[list[str], list[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["node", "--insecure", *words, "--port", "9095"]) == 0
    assert said in capsys.readouterr().out
    ((of_flower, of_process),) = started
    assert of_flower == ["--insecure", *(word for word in words if word != "--any-app"), "--port", "9095"]
    assert of_process[:4] == [sys.executable, "-P", "-m", "fedstats_app.cli.supernode.process"]
    assert of_process[4] == RUNTIME.address and of_process[6:] == more


def test_options_are_not_abbreviated(started: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["node", "--any"])
    assert not started and "--any" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('approved-apps="abc"', "node-config: approved-apps: must be SHA-256"),
        ('data-path="/data" min-class-cont=100', "node-config: min-class-cont: no such key; did you mean min-class-c"),
        ("", "node-config: must name data-path"),
    ],
)
def test_a_wrong_node_config_is_one_line_and_code_2(
    config: str, said: str, started: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node", "--node-config", config]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedstats node: {said}") and error.count("\n") == 1
    assert not started


def test_a_flower_that_is_another_is_one_line_and_nothing_runs() -> None:
    program = (
        "import sys\nsys.modules['flwr.supercore.runtime'] = None\n"
        "from fedstats_app.cli import main\nsys.exit(main(['node', '--insecure']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the Flower installed here is not one that this command knows" in done.stderr


def test_flower_itself_starts_no_app_whatever_the_words_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    monkeypatch.setattr(flower, "_read_bundles_within_bounds", lambda: None)
    seen: list[str] = []
    monkeypatch.setattr(sys, "argv", ["fedstats"])
    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", lambda: seen.extend(sys.argv))
    flower.run_supernode(["--insecure", "--isolation", "subprocess"], lambda _: [])
    module = importlib.import_module("flwr.supernode.cli.flower_supernode")
    assert module._parse_args_run_supernode().parse_args(seen[1:]).isolation == "process"
