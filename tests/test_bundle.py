"""The app bundle that `flwr run` submits and `flwr app publish` uploads: what is in it, and how large."""

import json
import os
import re
import shlex
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_files

from research.bundle_weight import APPS, COMMAND_LINE, MODULES, TRAINING, code_lines, reached
from tests.docs.markdown import blocks
from tests.support.commands import REPOSITORY, output_of
from tests.support.flower import simulation

SETTINGS = {"backbone": "random:tiny", "input-size": 16, "num-clients": 4, "partitioner": "iid"}
SETTINGS |= {"partition.samples-per-class": 20, "plots": False, "method": "fedncm"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `flwr build` makes of the repository."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "out").mkdir()
    with simulation(folder / "home") as flower:
        built = flower.bash(f"flwr build --app {REPOSITORY}", cwd=folder / "out")
    assert built.returncode == 0, built.output
    (made,) = (folder / "out").glob("*.fab")
    return made


@pytest.fixture(scope="module")
def unpacked(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    return folder


def at(folder: Path, home: Path, *words: str) -> str:
    """Run Python with the unpacked package alone, and the tests' own grid."""
    (home / "tests").mkdir()
    (home / "tests" / "support").symlink_to(REPOSITORY / "tests" / "support")
    env = {"PYTHONPATH": f"{folder}{os.pathsep}{home}", "PATH": os.environ["PATH"], "HOME": str(home)}
    return output_of([sys.executable, *words], cwd=folder, env=env)


def test_what_its_readme_runs_is_in_the_unpacked_bundle(unpacked: Path) -> None:
    assert (unpacked / "README.md").read_bytes() == (REPOSITORY / "README.md").read_bytes()
    words = [word for block in blocks(unpacked / "README.md", "bash") for word in shlex.split(block.code)]
    named = [word for word in words if re.fullmatch(r"(conf|deployment|research|docs)/\S+", word)]
    assert named and all((unpacked / name).is_file() for name in named)
    # What `pip install -e .` builds from.
    project = tomllib.loads((unpacked / "pyproject.toml").read_text())
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert all((unpacked / name).exists() for name in (*included, project["project"]["readme"]))


def test_an_unpacked_bundle_runs(unpacked: Path, tmp_path: Path) -> None:
    nodes = [{"partition-id": 0, "num-partitions": 1}]
    said = at(unpacked, tmp_path, "-m", "tests.support.whole_app", json.dumps(SETTINGS), json.dumps(nodes))
    assert said.splitlines()[-1] == str(unpacked / "fedstats_app" / "__init__.py")
    assert "[fedstats] completed; results are in" in said


def test_an_unpacked_bundle_makes_a_folder_for_a_run(unpacked: Path, tmp_path: Path) -> None:
    at(unpacked, tmp_path, "-m", "fedstats_app.cli", "new", str(tmp_path / "made"))
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"pyproject.toml", "LICENSE", "conf"}


def test_the_unpacked_bundle_can_be_published_and_is_small(unpacked: Path) -> None:
    """Flower's hub takes 10 MB in all, 1 MB a file and 1,000 files, as `flwr app publish` checks them."""
    files = _collect_file_paths(unpacked)
    _validate_files(files)
    assert len(files) < 400 and sum(file.stat().st_size for file in files) < 8_000_000


def test_the_bundle_holds_what_apps_and_command_line_import_and_nothing_else(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as archive:
        held = {name for name in archive.namelist() if not name.startswith(".info/")}
    modules = reached(APPS) | reached([*COMMAND_LINE, "fedstats_app", "fedstats_app.testing"], library=True)
    sample = {name for name in held if name.startswith("fedstats_app/data/builtin/") and not name.endswith(".py")}
    conf = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "conf").glob("*.toml")}
    code = {str(MODULES[module].relative_to(REPOSITORY)) for module in modules}
    assert held == code | sample | conf | {"pyproject.toml", "LICENSE", "README.md"}


def test_the_readme_says_how_many_lines_of_code_can_run_at_a_site() -> None:
    """Rounded up: it is a size to know before one agrees, not a number to edit with every line."""
    text = " ".join((REPOSITORY / "README.md").read_text().split())
    named = re.search(r"([\d,]+) lines of this package can run at a site; without training, ([\d,]+)", text)
    assert named is not None
    lines = [sum(map(code_lines, reached(["fedstats_app.client_app"], without=names))) for names in ((), TRAINING)]
    rounding = [int(number.replace(",", "")) - exact for number, exact in zip(named.groups(), lines, strict=True)]
    assert all(0 <= difference < 500 for difference in rounding), lines
