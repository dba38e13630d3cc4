"""A simple run loads little, and few of our own calls lie between the command and the solver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Modules of the package that an in-process FedNCM run may load: lower it when the number falls.
MOST_MODULES = 165

RUN = """
import json, sys
from fedstats_app import simulate

folder = sys.argv[1]
simulate({
    "method": "fedncm", "backbone": "random:tiny", "input-size": 16, "num-clients": 3,
    "partitioner": "dirichlet@samples-per-class=10",
    "plots": False, "output-dir": folder, "cache-dir": folder + "/cache", "settle-seconds": 0.1,
})
print("LOADED", json.dumps(sorted(sys.modules)))
"""

# Calls of the package from `fedstats run` to the one that calls the solver.
MOST_FRAMES = 10

FRAMES = """
import sys, traceback
from fedstats_app import heads
from fedstats_app.cli import main

def solve_ridge(*given, **options):
    frames = [one for one in traceback.extract_stack() if "fedstats_app" in one.filename]
    print("FRAMES", len(frames))
    return solve(*given, **options)

solve, heads.solve_ridge = heads.solve_ridge, solve_ridge
folder = sys.argv[1]
sys.exit(main([
    "run", "method='fed3r'", "backbone='random:tiny'", "input-size=16", "num-clients=3", "plots=false",
    "partitioner='dirichlet@samples-per-class=10'", f"output-dir='{folder}'", f"cache-dir='{folder}/cache'",
    "settle-seconds=0.1",
]))
"""

NOT_FOR_FEDNCM = (
    "fedstats_app.client.personal",
    "fedstats_app.client.training",
    "fedstats_app.grid.mezo_exchange",
    "fedstats_app.personal.approaches",
    "fedstats_app.server.fine_tuning",
    "fedstats_app.server.personalisation",
    "fedstats_app.strategies.fedmezo",
    "fedstats_app.strategies.fine_tuning",
    "matplotlib",
    "mlflow",
    "tensorboard",
    "tokenizers",
    "transformers",
    "wandb",
)


def test_a_fedncm_run_loads_what_it_needs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], capture_output=True, text=True, check=True)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("LOADED "))
    loaded = json.loads(line.removeprefix("LOADED "))

    assert not set(NOT_FOR_FEDNCM) & set(loaded)
    assert sum(name.split(".")[0] == "fedstats_app" for name in loaded) <= MOST_MODULES


def test_few_calls_lie_between_the_command_and_the_solver(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FRAMES, str(tmp_path)], capture_output=True, text=True, check=True)
    numbers = [int(line.removeprefix("FRAMES ")) for line in done.stdout.splitlines() if line.startswith("FRAMES ")]
    assert numbers and max(numbers) <= MOST_FRAMES
