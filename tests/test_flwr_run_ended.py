"""Runs by Flower that end before their time: by an error, or killed with all that runs them."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from tests.support.deployment import PATIENCE
from tests.support.flower import REAL_RUNS, REPOSITORY, Simulation, descendants, superlinks_of

pytestmark = REAL_RUNS


def test_a_failed_run_says_so_last(flower: Simulation) -> None:
    run = flower.bash("flwr run . --stream -c \"dataset='folder:/nowhere/at/all' backbone='random:tiny'\"")
    last = run.output.rstrip().splitlines()[-1]
    assert last.startswith("[fedstats] FAILED: ") and "/nowhere/at/all" in last, run.output
    assert "Traceback" not in run.output and "Exit Code" not in run.output, run.output
    (line,) = (line for line in run.said if line.startswith("[fedstats] run folder: "))
    status = json.loads((Path(line.removeprefix("[fedstats] run folder: ")) / "status.json").read_text())
    assert status["state"] == "failed" and "/nowhere/at/all" in status["reason"]


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(flower: Simulation) -> None:
    settings = (
        "method='fedncm,fedcof' backbone='random:tiny' input-size=16 num-clients=12 fine-tune='probe' "
        "fraction-tune=0.5 start-head='random,fedcof' optimizer='fedadam' num-server-rounds=8 "
        "plots=false"
    )
    whole = flower.bash(f"fedstats run -c \"{settings} output-dir='{flower.home}/whole'\"")  # the same bytes, sooner
    cut_runs = flower.home / "cut"
    with subprocess.Popen(
        ["bash", "-c", f"exec flwr run . --stream -c \"{settings} output-dir='{cut_runs}'\""],
        cwd=REPOSITORY,
        env=flower.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    ) as command:
        deadline = time.monotonic() + PATIENCE
        while len(lines := [line for path in cut_runs.glob("*/rounds.jsonl") for line in path.open()]) < 14:
            assert time.monotonic() < deadline, f"{len(lines)} rounds in {PATIENCE:.0f} s"
            time.sleep(0.02)
        # In the second training, after its checkpoint: 9 records are those of the first. SuperLink,
        # ServerApp and workers, all at once.
        [superlink] = superlinks_of(flower.home)
        for pid in (superlink, *descendants(superlink)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.kill()
    [folder] = cut_runs.iterdir()
    assert json.loads((folder / "status.json").read_text())["state"] == "running"
    assert not (folder / "heads" / "fedcof-probe.safetensors").exists()
    resumed = flower.bash(f"flwr run . --stream -c \"{settings} output-dir='{cut_runs}' resume='{folder}'\"")
    assert resumed.folder == folder and any("fedcof-probe: continuing after round" in line for line in resumed.said)
    assert resumed.heads() == whole.heads()
    assert json.loads((folder / "status.json").read_text())["state"] == "completed"
