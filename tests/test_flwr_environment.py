"""A run as on a fresh machine, in the environment that Flower builds for it."""

import sys
from pathlib import Path

from tests.support.commands import output_of
from tests.support.flower import REAL_RUNS, simulation

pytestmark = REAL_RUNS


def test_a_run_without_the_variable_completes_in_an_environment_that_flower_builds(tmp_path: Path) -> None:
    """The one test that builds an environment, of what uv has kept where the app was installed as README says."""
    options = "method='fedncm' backbone='random:tiny' input-size=16 num-clients=3 plots=false"
    with simulation(tmp_path / "home") as flower:
        del flower.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]
        flower.environment["UV_CACHE_DIR"] = output_of([sys.executable, "-m", "uv", "cache", "dir"]).strip()
        run = flower.bash(f'flwr run . --stream -c "{options}"', timeout=1500)
        assert run.json("results.json")["num_clients_merged"] == 3
