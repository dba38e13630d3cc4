"""A run in one process: the same bytes as over a grid that pickles, the same folder, the same sentences."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity

import fedstats_app
from fedstats_app.base.files import read_json_lines
from fedstats_app.base.option import ConfigError
from fedstats_app.base.threads import num_threads
from fedstats_app.simulation import UnknownFlower, check_flower, task
from tests.support import simulation
from tests.support.commands import REPOSITORY
from tests.support.simulation import head_bytes, read_json

TINY: dict[str, Any] = {"backbone": "random:tiny", "input-size": 16, "num-clients": 10, "plots": False}
# Times, and what follows from them.
OF_THE_CLOCK = {"seconds", "seconds_by_phase", "solve_seconds", "started", "ended", "compute_seconds"}


def run(tmp_path: Path, *, supernodes: int | None = None, **settings: Any) -> Path:
    keys = {name.replace("_", "-"): value for name, value in settings.items()}
    return fedstats_app.simulate({**TINY, **places(tmp_path), **keys}, supernodes=supernodes)


def places(tmp_path: Path) -> dict[str, str]:
    return {"output-dir": str(tmp_path / "here"), "cache-dir": str(tmp_path.parent / "cache")}


def only_folder(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "here").iterdir()
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if "seconds" not in key and key not in OF_THE_CLOCK}
        return {key: without_times(one) for key, one in kept.items()}
    return [without_times(one) for one in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Pair:
    """The folder of a run in this process, that of the same run with pickled messages, and what the former printed."""

    here: Path
    there: Path
    printed: str


def pair(tmp_path: Path, **settings: Any) -> Pair:
    before = TaskIdentity._run_id
    with redirect_stdout(io.StringIO()) as printed:
        here = run(tmp_path, **settings)
    assert TaskIdentity._run_id == before
    return Pair(here, simulation.simulate(tmp_path, **settings), printed.getvalue())


@pytest.fixture(scope="module")
def closed_form(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp("closed"), save_statistics="clients", seed=3)


def are_alike(runs: Pair) -> None:
    assert head_bytes(runs.here) == head_bytes(runs.there) and files(runs.here) == files(runs.there)
    one, other = (without_times(read_json(folder, "results.json")) for folder in (runs.here, runs.there))
    assert one["methods"] == other["methods"] and one.get("fine_tuning") == other.get("fine_tuning")
    mine, others = (without_times(read_json_lines(folder / "clients.jsonl")) for folder in (runs.here, runs.there))
    assert mine == others and read_json(runs.here, "status.json")["state"] == "completed"


TRAINED: list[Mapping[str, Any]] = [
    {"method": "fed3r", "fine_tune": "fedmezo", "fedmezo.num-z": 2, "num_server_rounds": 2, "num_clients": 4}
]


def test_heads_and_folder_are_those_of_a_run_with_pickled_messages(closed_form: Pair) -> None:
    are_alike(closed_form)


@pytest.mark.parametrize("settings", TRAINED, ids=["fedmezo"])
def test_so_are_those_of_what_is_trained(tmp_path: Path, settings: Mapping[str, Any]) -> None:
    are_alike(pair(tmp_path, **settings))


def test_processes_and_threads_are_printed(closed_form: Pair) -> None:
    assert re.search(rf"on 2 SuperNodes after \S+ s, in 1 process of {num_threads()} threads?;", closed_form.printed)


@pytest.mark.parametrize(
    ("many", "threads", "own", "said"), [(3, 2, 0, True), (9, 2, 0, False), (3, 1, 0, False), (3, 2, None, False)]
)
def test_more_workers_are_named_where_they_pay(
    many: int,
    threads: int,
    own: int | None,
    said: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("fedstats_app.server.run.MANY_SITES", many)
    monkeypatch.setattr("fedstats_app.client_app.num_threads", lambda: threads)
    if own is not None:  # as if clients were in other processes than the server
        monkeypatch.setattr("fedstats_app.server.run.PROCESS", own)
    run(tmp_path, num_clients=4, method="fedncm")
    assert ("client-resources-num-cpus=1" in capsys.readouterr().out) is said


def test_the_number_of_supernodes_changes_no_byte(tmp_path: Path, closed_form: Pair) -> None:
    assert head_bytes(run(tmp_path, supernodes=7, seed=3)) == head_bytes(closed_form.here)


def test_values_of_numpy_lists_and_paths_are_taken(tmp_path: Path) -> None:
    settings = {"num_clients": np.int64(4), "method": ["fedncm", "fed3r"], "output_dir": tmp_path / "here"}
    folder = run(tmp_path, **settings, fed3r={"ridge-lambda": np.float32(0.5)})
    assert read_json(folder, "config.json")["run_config"]["num-clients"] == 4
    assert read_json(folder, "results.json")["methods"].keys() == {"fedncm", "fed3r"}


def test_mistakes_in_settings_are_named_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num-client: no such key; did you mean num-clients"):
        run(tmp_path, num_client=20)
    with pytest.raises(ConfigError, match="num-clients: must be a whole number"):
        run(tmp_path, num_clients="20")
    with pytest.raises(ValueError, match="supernodes: must be a whole number of at least 1, got 0"):
        run(tmp_path, supernodes=0)
    assert not (tmp_path / "here").exists()


def test_files_that_changed_since_an_earlier_run_are_read_again(tmp_path: Path) -> None:
    flowers = simulation.site_folder(tmp_path / "flowers", ("red", "green"), seed=0)
    settings = {"dataset": f"folder:{flowers}", "num_clients": 2, "method": "fedncm", "partitioner": "iid"}
    settings |= {"fine_tune": "probe", "start_head": "zero", "num_server_rounds": 1, "learning_rate": 0.1}

    def samples() -> tuple[int, int]:
        folder = run(tmp_path, **settings)
        (_, first) = simulation.rounds(folder, "zero-probe")
        return read_json(folder, "results.json")["methods"]["fedncm"]["num_examples"], first["forward_passes"]

    assert samples() == (12, 12)
    Path(flowers, "red").rename(tmp_path / "flowers" / "blue")
    simulation.site_folder(tmp_path / "flowers", ("red",), seed=1, images=20)
    assert samples() == (28, 28)


def test_paths_of_data_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"nothing is at {re.escape(str(tmp_path / 'flowers'))}$"):
        run(tmp_path, dataset="folder:flowers")


# The process stops itself at the second client's statistics. CI's shell has its jobs in the background ignore SIGINT.
STOPPED = """
import json, os, signal, sys
import fedstats_app
from fedstats_app import client_app
from tests.support.small_sample import use_an_eighth

use_an_eighth()
signal.signal(signal.SIGINT, signal.default_int_handler)
asked, answer = 0, client_app.app

def interrupted(msg, context):
    global asked
    asked += msg.metadata.message_type == "query.statistics"
    if asked == 2:
        os.kill(os.getpid(), int(sys.argv[1]))
    return answer(msg, context)

client_app.app = interrupted
fedstats_app.simulate(json.loads(sys.argv[2]))
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX's signals")
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_stop_a_run_and_resume_continues_it(by: int, tmp_path: Path, closed_form: Pair) -> None:
    """The signal goes to a process of its own: one to a worker of the tests has ended all of them."""
    settings = json.dumps({**TINY, **places(tmp_path), "seed": 3})
    command = [sys.executable, "-c", STOPPED, str(int(by)), settings]
    env = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums round differently on other numbers
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0 and "KeyboardInterrupt" in done.stderr.splitlines()[-1]
    folder = only_folder(tmp_path)
    status = read_json(folder, "status.json")
    name = "SIGTERM" if by == signal.SIGTERM else "Ctrl-C"
    assert (status["state"], status["reason"]) == ("stopped", f"stopped by {name}")
    said = done.stdout.splitlines()
    assert said[0] == f"[fedstats] Ctrl-C stops this run, and the same settings with resume='{folder}' continue it"
    assert said[-1] == f"[fedstats] stopped by {name}; the same settings with resume='{folder}' continue it"
    assert not (folder / "traceback.txt").exists() and run(tmp_path, resume=str(folder), seed=3) == folder
    assert head_bytes(folder) == head_bytes(closed_form.there)


def test_one_run_at_a_time_and_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    before = TaskIdentity._run_id
    with task(5), pytest.raises(RuntimeError, match="another run is under way in this process: one at a time"):
        run(tmp_path)
    assert TaskIdentity._run_id == before


@pytest.mark.parametrize(("version", "fits"), [("1.41.0", True), ("1.43.0", False)])
def test_only_versions_of_flower_that_were_tried(version: str, fits: bool) -> None:
    if fits:
        check_flower(version)
    else:
        with pytest.raises(UnknownFlower, match=f"needs Flower 1.41 or 1.42, got {version}: use `flwr run .`"):
            check_flower(version)
