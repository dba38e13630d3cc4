"""What a process has freed goes back to the system."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedstats_app.server import machine

PROGRAM = """
from pathlib import Path
from fedstats_app.server.machine import give_back_memory

def resident():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024

parts = [b"x" * (60_000 + number % 2) for number in range(3000)]  # 180 MB
kept = parts[::100]
del parts
before = resident()
give_back_memory()
print(before - resident())
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
@pytest.mark.skipif(machine._trim() is None, reason="the C library is not GNU's")
def test_what_lies_between_what_is_kept_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 100


@pytest.mark.parametrize("error", [TypeError, OSError, AttributeError])
def test_where_there_is_no_such_function_nothing_happens(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: object) -> None:
        raise error

    monkeypatch.setattr(machine.ctypes, "CDLL", missing)
    machine._trim.cache_clear()
    try:
        assert machine._trim() is None
        machine.give_back_memory()
    finally:
        machine._trim.cache_clear()
