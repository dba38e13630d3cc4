"""The way of a user with images: README's two commands, from a folder per site to the class of a new image."""

import subprocess
from pathlib import Path

from tests.docs.markdown import REPOSITORY, blocks
from tests.support.deployment import PATIENCE, PORTS, free_range, script_environment, wait_until
from tests.support.flower import REAL_RUNS, processes_naming
from tests.support.simulation import site_folder

pytestmark = REAL_RUNS


def commands() -> list[str]:
    [block] = [block for block in blocks(REPOSITORY / "README.md", "bash") if "fedstats demo" in block.code]
    return block.code.splitlines()


def test_the_readme_s_commands_lead_from_folders_to_a_prediction(tmp_path: Path) -> None:
    sites, folder = tmp_path / "my sites", tmp_path / "demo"
    site_folder(sites / "north", ("black", "white"), seed=1, images=16)
    site_folder(sites / "south wing", ("white", "grey"), seed=2, images=16)
    (tmp_path / "picture.png").write_bytes(
        Path(site_folder(tmp_path / "new", ("grey",), seed=3, images=1), "grey", "0.png").read_bytes()
    )
    start, predict = commands()
    environment = script_environment(tmp_path)
    done = subprocess.run(
        f"{start.replace('/data/sites', repr(str(sites)))} --dir {folder} --port {free_range(PORTS)}",
        shell=True, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 sites answered" in done.stdout
    wait_until(lambda: not processes_naming(str(tmp_path)), "nothing is left")
    assert not folder.exists()
    [run] = [line for line in done.stdout.splitlines() if line.startswith("== The heads are there.")]
    said = run.split("fedstats predict ")[1].removesuffix(" picture.png")
    done = subprocess.run(
        predict.replace("/path/that/the/run/printed", said),
        shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    [best] = [line for line in done.stdout.splitlines() if line.startswith("picture.png")]
    assert done.returncode == 0 and best.split()[1] == "grey", done.stdout + done.stderr
