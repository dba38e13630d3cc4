"""A copy of the package, changed as a page says, and run."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.docs.markdown import REPOSITORY, blocks
from tests.support.commands import output_of


def changed_copy(root: Path, page: Path, *, num_files: int) -> Path:
    """Copy the package and add the files and the line of a page."""
    shutil.copytree(
        REPOSITORY / "fedstats_app", root / "fedstats_app", ignore=shutil.ignore_patterns("__pycache__", "*.json")
    )
    shutil.copytree(REPOSITORY / "conf", root / "conf")
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    files = [(root / block.file, block.code) for block in blocks(page, "python") if block.file]
    assert len(files) == num_files and not any(path.exists() for path, _ in files)
    for path, code in files:
        path.write_text(code)
    apply(blocks(page, "diff")[0].code, root)
    return root


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


def python(root: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{REPOSITORY}"}
    return output_of([sys.executable, *arguments], cwd=root, env=env)


def run_app(root: Path, settings: Mapping[str, object], policies: Sequence[Mapping[str, object]]) -> str:
    """Run the whole app of a copy on as many nodes as there are policies, and return what it printed."""
    nodes = [{"partition-id": node, "num-partitions": len(policies), **own} for node, own in enumerate(policies)]
    return python(root, "-m", "tests.support.whole_app", json.dumps(settings), json.dumps(nodes))
