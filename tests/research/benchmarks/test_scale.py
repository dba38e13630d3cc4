"""The parts of the benchmark that need no run: memory of processes that end by themselves, and shorter federations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from research.benchmarks.scale import SERVER, WORKER, PeakMemory

PROGRAM = "import time; held = bytearray({megabytes} * 10**6); time.sleep(1.5)"


def start(home: Path, kind: str, megabytes: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM.format(megabytes=megabytes), kind]
    return subprocess.Popen(command, env={**os.environ, "FLWR_HOME": str(home)})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_largest_process_of_each_kind_and_home_counts(tmp_path: Path) -> None:
    earlier = start(tmp_path, SERVER, 900)
    with PeakMemory(tmp_path) as memory:
        started = [start(tmp_path, SERVER, 100), start(tmp_path, f"{WORKER}.run", 50), start(tmp_path, WORKER, 200)]
        others = [start(tmp_path / "another", SERVER, 900), start(tmp_path, "something else", 900)]
        for process in (earlier, *started, *others):
            assert process.wait(60) == 0
    of_kind = {kind: {*peaks} for kind, peaks in memory.peaks.items()}
    assert of_kind == {SERVER: {str(started[0].pid)}, WORKER: {str(one.pid) for one in started[1:]}}
    [server] = memory.peaks[SERVER].values()
    assert 100 < server < 150 and 200 < max(memory.peaks[WORKER].values()) < 250
