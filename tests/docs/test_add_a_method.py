"""The page about adding a method: done to a copy of the package, it gives a run with the new method."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.markdown import DOCS, REPOSITORY, blocks

PAGE = DOCS / "add-a-method.md"

RUN = """
import json, sys
from flwr.app import Context, RecordDict
from fedstats_app import client_app, server_app
from fedstats_app.config import AppConfig
from tests.support.local_grid import LocalGrid
config = {**AppConfig().to_run_config(), **json.loads(sys.argv[1])}
nodes = [{"partition-id": 0, "num-partitions": 1}]
server_app.app(LocalGrid(client_app.app, nodes, config), Context(1, 1, {}, RecordDict(), config))
"""


def apply(diff: str, root: Path) -> None:
    """Apply hunks of the page: lines that are there stay or go, and new ones come in between."""
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        file, _, body = part.partition("\n")
        text = (root / file).read_text()
        for hunk in body.split("@@\n"):
            lines = hunk.splitlines()
            old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
            new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
            assert text.count(old) == 1, f"{file} must have once:\n{old}"
            text = text.replace(old, new)
        (root / file).write_text(text)


def test_the_new_method_runs_beside_the_others(tmp_path: Path, run_config: dict[str, str | int | float | bool]) -> None:
    root = tmp_path / "copy"
    shutil.copytree(
        REPOSITORY / "fedstats_app", root / "fedstats_app", ignore=shutil.ignore_patterns("__pycache__", "*.json")
    )
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    for block in blocks(PAGE, "python"):
        assert block.file is not None and not (root / block.file).exists()
        (root / block.file).write_text(block.code)
    [diff] = blocks(PAGE, "diff")
    apply(diff.code, root)
    settings = {**run_config, "output-dir": str(tmp_path / "runs"), "feddiag-shrinkage": 0.1}
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{REPOSITORY}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (tmp_path / "runs").iterdir()
    methods = json.loads((folder / "results.json").read_text())["methods"]
    assert set(methods) == {"fedncm", "fed3r", "fedcof", "fedcgs", "feddiag"}
    assert methods["feddiag"]["regulariser"] == "shrinkage 0.1 (diagonal)"
    assert methods["feddiag"]["accuracy"] > 0.9
    assert (folder / "heads" / "feddiag.safetensors").is_file()
    assert "FedDiag" in done.stdout
