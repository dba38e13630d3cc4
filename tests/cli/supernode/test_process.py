"""What answers a message: the installed app, the bundle's, or a refusal."""

import hashlib
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.run import Run

from fedstats_app.cli.supernode import CodePolicy, RefusedApp, flower
from fedstats_app.cli.supernode.process import answer, command
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.of_message import REFUSED
from fedstats_app.testing import instruction
from fedstats_app.wire import QUERY_CLIENTS, read_node_info
from tests.support.deployment import wait_until
from tests.support.flower import REPOSITORY
from tests.support.simulation import site_folder

# Flower's bundle of an app of the same name, which tells on import that it was imported.
BUILD = """
import sys
from pathlib import Path
from flwr.cli.build import build_fab_from_disk
sys.stdout.buffer.write(build_fab_from_disk(Path(sys.argv[1])))
"""
HOSTILE = """
import os
import re
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

open({marker!r}, "a").close()
app = ClientApp()

@app.query("clients")
def clients(msg, context):
    context.node_config["data-path"] = "/changed"
    stolen = {{"files": os.listdir("/"), "any-app": bool(context.node_config.get("any-app"))}}
    return Message(RecordDict({{"stolen": ConfigRecord(stolen)}}), reply_to=msg)
"""


@pytest.fixture(scope="module")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marker") / "imported"


@pytest.fixture(scope="module")
def bundle(marker: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    root = tmp_path_factory.mktemp("app")
    (root / "fedstats_app").mkdir()
    settings = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    settings = re.sub(r"(?m)^fab-include = .*$", 'fab-include = ["LICENSE", "fedstats_app/*.py"]', settings)
    settings = re.sub(r"(?m)^fab-exclude = .*$", "", settings)
    (root / "pyproject.toml").write_text(settings, encoding="utf-8")
    for name in ("README.md", "LICENSE"):
        (root / name).write_bytes((REPOSITORY / name).read_bytes())
    for name in ("__init__.py", "server_app.py"):
        (root / "fedstats_app" / name).touch()
    (root / "fedstats_app" / "client_app.py").write_text(HOSTILE.format(marker=str(marker)))
    return subprocess.run([sys.executable, "-c", BUILD, root], capture_output=True, check=True, timeout=120).stdout


@pytest.fixture
def ask(tmp_path: Path, bundle: bytes, marker: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what answers `query.clients` under a policy, in this process, which keeps its modules."""
    marker.unlink(missing_ok=True)
    for name in [name for name in sys.modules if name.split(".")[0] == "fedstats_app"]:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    monkeypatch.setattr(sys, "path", list(sys.path))
    data = site_folder(tmp_path / "data", ("ant", "bee"), seed=1)
    context = Context(1, 4, {"data-path": data, "approved-apps": "0"}, RecordDict(), {})

    def asked(policy: CodePolicy, content: bytes = bundle) -> Message:
        run_config = AppConfig().to_run_config
        reply = answer(policy, instruction(RecordDict(), QUERY_CLIENTS, 4), context, content, run_config)
        assert context.node_config == {"data-path": data, "approved-apps": "0"}
        return reply

    return asked


def test_by_default_the_installed_app_answers_and_the_sent_one_is_not_imported(ask: Any, marker: Path) -> None:
    info = read_node_info(ask(CodePolicy()))
    assert info.class_names == ("ant", "bee") and not info.any_app
    assert not marker.exists()


def test_an_app_that_is_not_approved_is_refused_and_not_imported(ask: Any, marker: Path) -> None:
    reply = ask(CodePolicy(frozenset(["0" * 64])))
    assert reply.error.reason.startswith("RefusedApp: this node's approved-apps must have its SHA-256, which is ")
    assert not marker.exists()


@pytest.mark.parametrize("any_app", [False, True])
def test_code_that_the_owner_allows_runs_for_one_message(any_app: bool, ask: Any, bundle: bytes, marker: Path) -> None:
    approved = frozenset() if any_app else frozenset([hashlib.sha256(bundle).hexdigest()])
    record = ask(CodePolicy(approved, any_app)).content["stolen"]
    assert isinstance(record, ConfigRecord) and record["files"] and record["any-app"] is any_app
    assert marker.exists()


def test_a_folder_that_the_server_names_is_not_read(bundle: bytes, tmp_path: Path) -> None:
    data = site_folder(tmp_path / "data", ("ant", "bee"), seed=1)
    context = Context(1, 4, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
    run_config = AppConfig.of(dataset=f"folder:{data}").to_run_config
    reply = answer(CodePolicy(), instruction(RecordDict(), QUERY_CLIENTS, 4), context, bundle, run_config)
    assert reply.error.reason == f"RefusedByPolicy: {REFUSED}"


def run(**override: Any) -> Run:
    made = Run.create_empty(1)
    made.override_config = override
    return made


def test_the_configuration_is_the_bundle_s_with_what_the_run_overrides(bundle: bytes) -> None:
    assert AppConfig.from_run_config(flower.run_config_of(bundle, run(seed=7))) == AppConfig.of(seed=7)
    with pytest.raises(RefusedApp, match=r"configuration cannot be used: .*no-such-key"):
        flower.run_config_of(bundle, run(**{"no-such-key": 1}))


def test_a_bundle_made_to_end_the_supernode_does_not(monkeypatch: pytest.MonkeyPatch, bundle: bytes) -> None:
    supernode: Any = importlib.import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(supernode, "get_fused_config_from_fab", supernode.get_fused_config_from_fab)
    flower._read_bundles_within_bounds()
    read = supernode.get_fused_config_from_fab
    assert read(b"nonsense", run()) == {} and read(bundle, run(seed=7))["seed"] == 7


# The process, where an answer is a line of what it finds, and of keys as those of secure sums.
FOUND = """
import atexit, os, random, sys
import numpy
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fedstats_app.cli.supernode import process

seen = []

def answer_task(runtime, token, parent, answer):
    seen.append(token)
    key = X25519PrivateKey.generate().private_bytes_raw().hex()
    with open(runtime.address, "a") as file:
        print(seen, "torch" in sys.modules, os.getpid(), key, random.random(), sys.stdin.read(), file=file)

def at_the_end():
    print("taken apart", file=sys.stderr, flush=True)

atexit.register(at_the_end)
process.answer_task = answer_task
process.main(sys.argv[1:])
"""


def lines_of(path: Path, number: int) -> list[str]:
    wait_until(lambda: path.exists() and len(path.read_text().splitlines()) >= number, f"{number} lines")
    return path.read_text().splitlines()


@pytest.mark.skipif(not flower.FORKS, reason="this system does not fork")
@pytest.mark.parametrize(("policy", "taken_apart"), [(CodePolicy(), 1), (CodePolicy(any_app=True), 3)])
def test_messages_have_new_processes_with_keys_of_their_own_and_from_the_second_on_with_torch(
    policy: CodePolicy, taken_apart: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Only after code of others processes are taken apart as usual; so is the one that forks."""
    path = tmp_path / "found"
    words = command(flower.RuntimeAddress(str(path)), policy, 1)
    answering = flower.Answering([sys.executable, "-c", FOUND, *words[words.index(str(path)) :]])
    for token in ("one", "two"):
        answering.answer(token)
    lines = [line.split() for line in sorted(lines_of(path, 2))]
    assert [line[:2] for line in lines] == [["['one']", "False"], ["['two']", "True"]]
    assert all(len({line[place] for line in lines}) == 2 for place in (2, 3, 4)) and {*map(len, lines)} == {5}
    wait_until(lambda: not any(Path("/proc", line[2]).exists() for line in lines), "both processes have ended")
    (process,) = answering._begun
    answering.close()
    assert process.wait(120) == 0 and capfd.readouterr().err.count("taken apart") == taken_apart


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "seen"


def started(path: Path, script: str) -> flower.Answering:
    """Have tokens answered by a process that writes them down."""
    program = f"import os, sys\nsys.stdout = open({str(path)!r}, 'a', buffering=1)\nline = os.fdopen(0, 'r+b', 0)\n"
    return flower.Answering([sys.executable, "-c", program + script])


ENDLESS = """
print("begun")
try:
    line.write(b".")
    while token := line.readline():
        print(token.decode().strip())
        line.write(b".")
except OSError:  # the other end was closed with a byte unread
    pass
print("ended")
"""


def test_one_process_takes_all_tokens_and_another_those_after_it_died(path: Path) -> None:
    answering = started(path, ENDLESS.replace("print(token", "token == b'x\\n' and sys.exit()\n        print(token"))
    for token in "abx":
        assert answering.is_ready()
        answering.answer(token)
    assert not answering.is_ready()  # it has died, and is not asked
    answering.answer("c")
    answering.close()
    assert lines_of(path, 6) == ["begun", "a", "b", "begun", "c", "ended"]


def test_a_token_is_not_lost_where_the_process_was_killed_meanwhile(path: Path) -> None:
    answering = started(path, ENDLESS.replace('"begun"', "os.getpid()"))
    assert answering.is_ready()
    first = int(lines_of(path, 1)[0])
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    answering.answer("a")
    answering.close()
    assert lines_of(path, 4)[2:] == ["a", "ended"]


def test_a_process_that_dies_with_a_token_unread_is_replaced(path: Path) -> None:
    answering = started(path, "line.write(b'.')\nos.kill(os.getpid(), 19)\n")  # it stops
    assert answering.is_ready()
    answering.answer("a")
    answering._begun[0].kill()
    assert not answering.is_ready() and answering.is_ready()
    answering._begun[-1].kill()


def test_a_process_with_nothing_to_do_is_let_go_and_another_comes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering = started(path, ENDLESS)
    assert answering.is_ready()
    answering.answer("a")
    assert answering.is_ready() and answering.is_ready()
    monkeypatch.setattr(flower, "IDLE_SECONDS", 0.0)
    assert answering.is_ready() and answering.is_ready()
    answering.answer("b")
    answering.close()
    assert sorted(lines_of(path, 6)) == sorted(["begun", "a", "ended", "begun", "b", "ended"])


def test_where_nothing_forks_every_message_starts_a_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "FORKS", False)
    answering = started(path, "print(os.read(0, 1).decode(), os.getpid())")
    for token in "ab":
        assert answering.is_ready()
        answering.answer(token)
    assert len({line.split()[-1] for line in lines_of(path, 2)}) == 2


def test_what_answers_ends_with_its_supernode_even_if_it_waits_for_it(path: Path) -> None:
    waits = f"""
import sys, threading
from fedstats_app.cli.supernode import flower

flower.SECONDS_TO_END = 0.1
threading.Thread(target=flower.end_with, args=(int(sys.argv[1]),), daemon=True).start()
while True:
    try:
        open({str(path)!r}, "w").write("began\\n")
        threading.Event().wait()
    except KeyboardInterrupt:
        open({str(path)!r}, "a").write("told\\n")
"""
    with subprocess.Popen(["sleep", "600"]) as node:
        answering = subprocess.Popen([sys.executable, "-c", waits, str(node.pid)])
        lines_of(path, 1)
        assert answering.poll() is None
        node.kill()
        node.wait()
        assert answering.wait(120) == 1
