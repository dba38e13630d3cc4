"""`fedstats node`: what it takes itself, and what goes to Flower."""

import ast
import importlib
import importlib.metadata
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest

from fedstats_app.cli import main
from fedstats_app.cli.supernode import flower, versions
from fedstats_app.cli.supernode.flower import RuntimeAddress
from tests.support.flower import REPOSITORY

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
        (["--node-config", f'approved-apps="{DIGEST}" x=1'], ["--approved", DIGEST], "the code of 1 approved apps"),
    ],
)
def test_processes_are_told_whose_code_runs(
    words: list[str],
    more: list[str],
    said: str,
    started: list[tuple[list[str], list[str]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["node", "--insecure", *words, "--port", "9095"]) == 0 and said in capsys.readouterr().out
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
def test_a_wrong_node_config(config: str, said: str, started: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "--node-config", config]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fedstats node: {said}") and error.count("\n") == 1
    assert not started


PUBLIC = {"flwr.app", "flwr.clientapp"}


def test_every_name_of_flower_s_that_a_node_uses_is_looked_at() -> None:
    used: dict[str, set[str]] = {}
    for file in (REPOSITORY / "fedstats_app/cli/supernode").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            module = str(node.module) if isinstance(node, ast.ImportFrom) else ""
            if isinstance(node, ast.ImportFrom) and module.startswith("flwr.") and module not in PUBLIC:
                used.setdefault(module, set()).update(alias.name for alias in node.names)
    # Replaced there (:func:`flower._read_bundles_within_bounds`).
    used["flwr.supernode.start_client_internal"] = {"get_fused_config_from_fab"}
    assert used == {module: {name.partition(".")[0] for name in names} for module, names in versions.NAMES.items()}


@pytest.mark.parametrize(
    "changed",
    [
        "sys.modules['flwr.supercore.runtime'] = None",
        "import flwr.supercore.address as m; del m.resolve_bind_address",
        "import flwr.supernode.runtime.run_clientapp as m; m.push_message = lambda client, context, message: None",
        "import flwr.supernode.runtime.run_clientapp as m; m.pull_task_input = lambda client, needed: None",
    ],
)
def test_a_flower_that_is_another_is_one_sentence_and_nothing_runs(changed: str) -> None:
    program = (
        f"import sys, importlib.metadata as m\nm.version = lambda _: '1.45.0'\n{changed}\n"
        "from fedstats_app.cli import main\nsys.exit(main(['node', '--insecure']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fedstats node: this needs flwr 1.41 or 1.42, found 1.45.0: install flwr==1.42.0\n"


def test_a_version_that_was_not_tested_is_one_line_of_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert versions.check_flower() == ""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.43.0")
    assert versions.check_flower() == "WARNING: flwr 1.43.0 was not tested with this; 1.41.0 and 1.42.0 were"
    # What may be left out is no other signature.
    monkeypatch.setattr("flwr.supercore.address.resolve_bind_address", lambda address, more=1: address)
    assert versions.check_flower()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let SuperNodes end at once: the words that they had."""
    monkeypatch.setattr(flower, "_start_tasks", lambda *_: None)
    monkeypatch.setattr(flower, "_read_bundles_within_bounds", lambda: None)
    words: list[str] = []
    monkeypatch.setattr(sys, "argv", ["fedstats"])
    monkeypatch.setattr("flwr.supernode.cli.flower_supernode", lambda: words.extend(sys.argv))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "server.example")
    return words


def test_flower_itself_starts_no_app_whatever_the_words_say(seen: list[str]) -> None:
    flower.run_supernode(["--insecure", "--isolation", "subprocess"], lambda _: [])
    module = importlib.import_module("flwr.supernode.cli.flower_supernode")
    assert module._parse_args_run_supernode().parse_args(seen[1:]).isolation == "process"


@contextmanager
def supernode(status: int) -> Iterator[RuntimeAddress]:
    """Answer requests for tasks with a status."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield RuntimeAddress(f"127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("seen")
def test_a_node_reaches_its_own_supernode_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    flower.run_supernode(["--insecure"], lambda _: [])
    with supernode(200) as runtime:
        assert not runtime.client().AcquireTask(AcquireTaskRequest()).token
    assert os.environ["NO_PROXY"].split(",") == ["server.example", "127.0.0.1", "localhost", "::1"]


@pytest.mark.parametrize(
    ("status", "patience", "advice"),
    [
        (401, 30.0, "401 .*: give --superexec-auth-secret-file the file that the SuperNode has"),
        (503, 30.0, "503 .*: another program may have this port"),
        (None, 0.0, "refused.*: restart the node"),
        (None, 30.0, ""),  # a SuperNode that is still starting
    ],
)
def test_a_supernode_that_gives_out_no_tasks_is_logged_once_with_what_to_do(
    status: int | None, patience: float, advice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    polls = iter(range(3))

    def sleep(_: float) -> None:
        if next(polls, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(flower.Answering, "is_ready", lambda _: True)
    monkeypatch.setattr(flower, "SECONDS_TO_START", patience)
    monkeypatch.setattr(flower.time, "sleep", sleep)
    with supernode(status or 200) as runtime, caplog.at_level(logging.ERROR, "fedstats_app"):
        runtime = runtime if status else RuntimeAddress("127.0.0.1:9")
        with pytest.raises(KeyboardInterrupt):
            flower._start_tasks(runtime, [], None)
    assert len(caplog.messages) == bool(advice)
    assert all(re.search(f"messages go unanswered: the SuperNode at .*{advice}", line) for line in caplog.messages)
