"""A simple run loads little, and few of our own calls lie between the command and the solver."""

import json
import subprocess
import sys

import pytest

# Modules of the package that an in-process FedNCM run may load: lower it when the number falls.
MOST_MODULES = 167
# Calls of the package from `fedstats run` to the one that calls the solver.
MOST_FRAMES = 10

# Two runs: of FedNCM, to see what it loads, and of Fed3R, to see the calls.
RUNS = """
import json, sys, traceback
from fedstats_app import heads, simulate
from fedstats_app.cli import main

folder = sys.argv[1]
settings = {
    "backbone": "random:tiny", "input-size": 16, "num-clients": 3, "partition.samples-per-class": 10,
    "output-dir": folder, "cache-dir": folder + "/cache", "settle-seconds": 0.1,
}
simulate({**settings, "method": "fedncm", "plots": False})
print("LOADED", json.dumps(sorted(sys.modules)))

def solve_ridge(*given, **options):
    frames = [one for one in traceback.extract_stack() if "fedstats_app" in one.filename]
    print("LEFT OUT" if any("influence" in one.filename for one in frames) else "FRAMES", len(frames))
    return solve(*given, **options)

solve, heads.solve_ridge = heads.solve_ridge, solve_ridge
words = [f"{key}={value!r}" for key, value in settings.items()]
sys.exit(main(["run", "method='fed3r'", "plots=false", *words]))
"""

NOT_FOR_FEDNCM = (
    "fedstats_app.client.training",
    "fedstats_app.grid.mezo_exchange",
    "fedstats_app.server.fine_tuning",
    "fedstats_app.strategies.fedmezo",
    "fedstats_app.strategies.fine_tuning",
    "matplotlib",
    "tokenizers",
    "transformers",
)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = str(tmp_path_factory.mktemp("runs"))
    done = subprocess.run([sys.executable, "-c", RUNS, folder], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_fedncm_run_loads_what_it_needs(said: list[str]) -> None:
    (line,) = (line for line in said if line.startswith("LOADED "))
    loaded = json.loads(line.removeprefix("LOADED "))

    assert not set(NOT_FOR_FEDNCM) & set(loaded)
    assert sum(name.split(".")[0] == "fedstats_app" for name in loaded) <= MOST_MODULES


def test_few_calls_lie_between_the_command_and_the_solver(said: list[str]) -> None:
    numbers = [int(line.removeprefix("FRAMES ")) for line in said if line.startswith("FRAMES ")]
    assert numbers and max(numbers) <= MOST_FRAMES
