"""What deployment/ and docs/deployment.md say is so: the commands, versions of pyproject.toml, no Ray on a node."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.markdown import blocks
from tests.support.flower import REPOSITORY
from tests.support.simulation import nodes_of

DEPLOYMENT = REPOSITORY / "deployment"
DOCUMENT = REPOSITORY / "docs" / "deployment.md"
# What a node need not have. torchvision's networks need torchvision, parquet files need datasets; folders do not.
ABSENT = {"ray", "matplotlib", "flwr_datasets", "datasets", "pandas", "pyarrow"}
ABSENT |= {"torchvision", "timm", "sklearn", "scipy"}


def lines_of(text: str) -> list[str]:
    """Return commands by line, without what only the script has around them."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def test_the_document_shows_the_script_s_commands() -> None:
    script = lines_of((DEPLOYMENT / "demo.sh").read_text())
    shown = [
        line
        for block in blocks(DOCUMENT, "bash")
        if not re.match(r"deployment/demo\.sh|DIR=|pip |podman |python -m benchmarks", block.code)
        for line in lines_of(block.code)
    ]
    assert [line for line in shown if line not in script] == []
    # And none of the script's steps is left out.
    for command in ("openssl x509", "flower-superlink", "ssh-keygen", "flwr supernode register", "fedstats node"):
        assert any(line.startswith(command) for line in shown), command
    assert any(line.startswith("flwr run . demo") for line in shown)


def test_the_script_is_well_formed() -> None:
    subprocess.run(["bash", "-n", DEPLOYMENT / "demo.sh"], check=True)
    wrong = subprocess.run([DEPLOYMENT / "demo.sh", "--prt", "1"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "no such option: --prt" in wrong.stderr


def requirements(lines: list[str]) -> dict[str, str]:
    """Return version specifiers by name, extras left out."""
    found = {}
    for line in lines:
        match = re.fullmatch(r"([A-Za-z0-9-]+)(?:\[\w+\])?(.*)", line)
        assert match is not None, line
        found[match[1]] = match[2]
    return found


def test_a_node_s_requirements_are_some_of_the_project_s() -> None:
    project = requirements(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"])
    node = requirements(lines_of((DEPLOYMENT / "requirements-node.txt").read_text()))
    assert node.items() <= project.items()
    assert set(project) - set(node) == {"flwr-datasets", "torchvision", "matplotlib", "cryptography"}


NODE = """
import sys

class WithoutAbsent:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            return None
        specs = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in specs if spec is not None), None)

sys.meta_path[:] = [WithoutAbsent(list(sys.meta_path))]
from flwr.app import Context, RecordDict
from tests.support.local_grid import LocalGrid
from fedstats_app import client_app, server_app
from fedstats_app.config import AppConfig

run_config = {{**AppConfig().to_run_config(), **{settings!r}}}
grid = LocalGrid(client_app.app, {nodes!r}, run_config)
server_app.app(grid, Context(7, 1, {{}}, RecordDict(), run_config))
"""


def test_a_node_works_without_ray_and_all_else_that_only_simulations_need(tmp_path: Path) -> None:
    """The whole app, in fact: statistics, evaluation and fine-tuning, with the packages absent."""
    nodes = nodes_of(tmp_path, "ab", ("ant", "bee"), images=20)
    settings = {
        "backbone": "random:tiny",
        "input-size": 16,
        "plots": False,
        "output-dir": str(tmp_path / "runs"),
        "settle-seconds": 0.1,
        "fine-tune": "full",
        "num-server-rounds": 1,
    }
    done = subprocess.run(
        [sys.executable, "-c", NODE.format(absent=ABSENT, settings=settings, nodes=nodes)],
        env={"PYTHONPATH": f"{REPOSITORY / 'tests'}:{REPOSITORY}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[fedstats] completed; results are in" in done.stdout
    assert not re.search(r"failed|did not evaluate|not in the average", done.stdout), done.stdout


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOYMENT / "fedstats-supernode.service").read_text()
    program = "/opt/fedstats/bin/fedstats node"
    assert f"ExecStart={program} " in unit
    here = tmp_path / "fedstats-supernode.service"
    # It wants the program to be there.
    here.write_text(unit.replace(f"ExecStart={program}", "ExecStart=/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True)
    assert done.returncode == 0 and "fedstats-supernode" not in done.stderr, done.stderr


def test_unit_and_container_name_options_that_the_node_has() -> None:
    usage = subprocess.run(
        [Path(sys.executable).parent / "flower-supernode", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for file in (DEPLOYMENT / "fedstats-supernode.service", DOCUMENT):
        commands = re.findall(
            r"(?:ExecStart=\S+ node|^fedstats node|fedstats-supernode \\)((?:.*\\\n)*.*)", file.read_text(), re.M
        )
        options = {option for command in commands for option in re.findall(r"(?<!\S)--[a-z-]+", command)}
        assert {"--superlink", "--node-config"} <= options, file.name
        assert [option for option in options if option not in usage] == [], file.name


def test_the_container_has_what_a_node_needs_and_starts_it() -> None:
    lines = (DEPLOYMENT / "Containerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    assert copied and all((REPOSITORY / name).exists() for name in copied)
    assert {"deployment/requirements-node.txt", "pyproject.toml", "fedstats_app"} <= set(copied)
    assert 'ENTRYPOINT ["fedstats", "node"]' in lines
