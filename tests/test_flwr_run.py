"""The README's command, run for real: Flower's simulation with Ray, the built-in sample, the default backbone."""

import json
import re
import shutil
from pathlib import Path

import pytest

import fedstats_app
from tests.support.flower import COMPLETED, REAL_RUNS, REPOSITORY, Finished, Simulation
from tests.support.simulation import share_right

pytestmark = REAL_RUNS

# Around what the README's table says (74.55, 85.30, 81.05, 85.15, 85.50): other processors round features differently.
BANDS = {"fedncm": (0.74, 0.76), "fed3r": (0.845, 0.862), "fedcof": (0.80, 0.83), "fedcgs": (0.838, 0.855)}
BANDS |= {"fedroot": (0.848, 0.865)}
EIGHTH = "partition.samples-per-class=100 num-clients=100"


def readme_command() -> str:
    """Return the README's first command, from where the app is installed."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", (REPOSITORY / "README.md").read_text(), flags=re.DOTALL)
    install, *lines = next(block for block in blocks if "flwr run ." in block).strip().splitlines()
    assert install == "pip install uv && uv pip install -e ."
    return "\n".join(lines)


def _last_line(output: str) -> str:
    """Return the last line that no worker of Ray's has written: theirs come whenever it passes them on."""
    return [line for line in output.rstrip().splitlines() if "pid=" not in line][-1]


def test_the_readme_command_gives_the_readme_table(flower: Simulation) -> None:
    default_run = flower.bash(readme_command())
    assert default_run.returncode == 0, default_run.output
    assert default_run.said[-1] == COMPLETED, default_run.output
    # The last word is the path, whatever Flower says when its process ends.
    assert _last_line(default_run.output) == str(default_run.folder), default_run.output
    assert default_run.folder.parent == flower.home / "fedstats-runs"
    results = default_run.json("results.json")
    assert default_run.json("status.json")["state"] == "completed" and "FutureWarning" not in default_run.output
    assert results["num_clients_merged"] == results["num_clients_asked"] == 100
    for method, (low, high) in BANDS.items():
        entry = results["methods"][method]
        assert low <= entry["accuracy"] <= high, (method, entry["accuracy"])
        assert entry["num_examples"] == 8000 and entry["num_clients"] == 100
        assert f"{100 * entry['accuracy']:.2f}" in default_run.output
    # Papers' formulas, with M = 362 (class, client) pairs of the default partition.
    pairs, clients, dim, classes = 362, 100, 1280, 10
    by_formula = {"fedncm": 4 * pairs * dim, "fedcof": 4 * pairs * dim, "fed3r": 4 * (pairs * dim + clients * dim**2)}
    by_formula |= {"fedcgs": 4 * clients * (classes * dim + dim**2 + classes)}
    assert {name: results["methods"][name]["uplink_bytes"] for name in by_formula} == by_formula
    # Clients of 80 samples on average send the factor of their Gram matrix of 1280 features, or less.
    assert results["methods"]["fed3r"]["wire_bytes"] < 45e6 < 0.07 * by_formula["fed3r"]
    assert results["methods"]["fedroot"]["wire_bytes"] == results["methods"]["fedroot"]["uplink_bytes"] < 4.5e6


@pytest.fixture(scope="module")
def smaller_run(flower: Simulation) -> Finished:
    """Run README's command on an eighth of the training images: what stays the same does not ask for all."""
    return flower.bash(f'{readme_command()} -c "{EIGHTH}"')


def test_a_run_in_one_process_gives_the_same_bytes_and_files(smaller_run: Finished, flower: Simulation) -> None:
    here = flower.bash(f'fedstats run -c "{EIGHTH}"')
    assert here.returncode == 0, here.output
    assert here.heads().keys() == smaller_run.heads().keys()
    assert not [name for name, head in here.heads().items() if head != smaller_run.heads()[name]]
    names = [{path.relative_to(run.folder) for path in run.folder.rglob("*")} for run in (here, smaller_run)]
    assert names[0] == names[1]
    one, other = (run.json("results.json") for run in (here, smaller_run))
    assert one["advice"] == other["advice"] and _last_line(here.output) == str(here.folder)


def test_the_run_folder_is_complete(smaller_run: Finished) -> None:
    heads, plots = ({path.name for path in (smaller_run.folder / name).iterdir()} for name in ("heads", "plots"))
    assert heads == {f"{name}.safetensors" for name in BANDS}
    taken = smaller_run.json("results.json")["advice"]["method"]
    assert plots == {"accuracy-vs-megabytes.png", f"confusion-matrix-{taken}.png"}
    clients = [json.loads(line) for line in (smaller_run.folder / "clients.jsonl").read_text().splitlines()]
    assert [client["client"] for client in clients] == list(range(100))
    assert {client["outcome"] for client in clients} == {"merged"}


def test_three_lines_of_python_predict(smaller_run: Finished) -> None:
    assert share_right(fedstats_app.load(smaller_run.folder), 100) >= 0.75


def test_more_supernodes_give_the_same_bytes(smaller_run: Finished, flower: Simulation, tmp_path: Path) -> None:
    """The SuperLink that the first run left behind is used from another working directory."""
    again = flower.bash(
        f"flwr run {REPOSITORY} --stream --federation-config 'num-supernodes=3 client-resources-num-cpus=1' "
        f"-c \"{EIGHTH} output-dir='{tmp_path}/out' plots=false\"",
        cwd=tmp_path,
    )
    assert again.said[-1] == COMPLETED, again.output
    assert again.folder.parent == tmp_path / "out" and again.json("config.json")["num_supernodes"] == 3
    # Features come from the first run's cache, so even the bytes agree.
    assert again.heads() == smaller_run.heads()


def test_an_app_of_ones_own_runs(flower: Simulation) -> None:
    app = flower.home / "own-flower-app"
    shutil.copytree(REPOSITORY / "examples" / "own-flower-app", app)
    run = flower.bash("flwr run . --stream", cwd=app)
    assert run.output.count("merged 30") == 2 and "head.safetensors; accuracy 1.000" in run.output, run.output
    assert (flower.home / "head.safetensors").is_file()
