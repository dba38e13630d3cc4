"""The way of somebody with images: README's two commands, from a folder per site to the class of a new image."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.docs.markdown import REPOSITORY, blocks
from tests.support.deployment import (
    PATIENCE,
    PORTS,
    SCRIPT,
    free_range,
    needs_certificates,
    script_environment,
    wait_until,
)
from tests.support.flower import processes_naming
from tests.support.simulation import site_folder

pytestmark = needs_certificates


def commands() -> list[str]:
    [block] = [block for block in blocks(REPOSITORY / "README.md", "bash") if "demo.sh" in block.code]
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
    assert "2 of 2 clients answered" in done.stdout
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


def test_folders_that_are_no_sites_are_refused(tmp_path: Path) -> None:
    for folder in ("empty", "taken/server/ant", 'quoted/a"b/ant', "deep/good/ant", "deep/stray"):
        (tmp_path / folder).mkdir(parents=True)
    for images, reason in (
        ("empty", "must have a folder per site, got none"),
        ("taken", "must not be called server"),
        ("quoted", 'must not be called a"b'),
        ("deep", f"must have a folder of images per class, got none in {tmp_path}/deep/stray"),
    ):
        done = subprocess.run([SCRIPT, "--images", tmp_path / images], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and reason in done.stderr
