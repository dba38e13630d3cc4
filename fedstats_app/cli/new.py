"""`fedstats new`: a folder that `flwr run` takes, for those who have the package and no clone."""

from __future__ import annotations

import argparse
import re
import shutil
import tomllib
from pathlib import Path

import fedstats_app
from fedstats_app.cli import CommandError

PROJECT = "pyproject.toml"
# The settings and their tables, to the next table of something else.
_CONFIG = re.compile(
    r"^\[tool\.flwr\.app\.config\]\n.*?(?=^\[(?!tool\.flwr\.app\.config)|\Z)", re.DOTALL | re.MULTILINE
)
_HEAD = """# A Flower app whose code is the installed fedstats-app. Change the defaults below, or override them:
#
#   flwr run . --stream --run-config "num-clients=20 method='fedcof'"
#
# `fedstats check` says whether settings are right.
[project]
name = "fedstats-run"
version = "{version}"
description = "Settings of fedstats-app"
license = {{ file = "LICENSE" }}
requires-python = ">=3.11,<3.14"
dependencies = ["fedstats-app=={version}", "{flower}"]

[tool.flwr.app]
publisher = "fedstats"
fab-format-version = 1
flwr-version-target = "{target}"
fab-include = ["LICENSE"]

[tool.flwr.app.components]
serverapp = "fedstats_app.server_app:app"
clientapp = "fedstats_app.client_app:app"

[tool.fedstats]
protocol-version = {protocol}

"""


def run(arguments: argparse.Namespace) -> int:
    """Write the folder, and print the command that runs what is in it."""
    folder = Path(arguments.folder)
    write_app(folder)
    print(f"{folder}: all settings are in {PROJECT}, examples in conf/. To run:\n")
    print(f"cd {folder} && FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream")
    return 0


def write_app(folder: Path) -> None:
    """Make a folder with the settings of an app whose code is this installed package.

    Parameters
    ----------
    folder : Path
        Must not be there, or be empty.

    Raises
    ------
    CommandError
        If there is something in it, or this installation lacks the files that go there.
    """
    from fedstats_app.wire import PROTOCOL_VERSION

    source = app_files()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandError(f"{folder} must not be there, or be an empty folder; something is there")
    project = (source / PROJECT).read_text(encoding="utf-8")
    own, config = tomllib.loads(project), _CONFIG.search(project)
    assert config is not None  # noqa: S101  # the app's own file has that section
    head = _HEAD.format(
        version=fedstats_app.__version__,
        flower=next(requirement for requirement in own["project"]["dependencies"] if requirement.startswith("flwr[")),
        target=own["tool"]["flwr"]["app"]["flwr-version-target"],
        protocol=PROTOCOL_VERSION,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROJECT).write_text(head + config[0].rstrip() + "\n", encoding="utf-8")
    shutil.copy(source / "LICENSE", folder)
    shutil.copytree(source / "conf", folder / "conf")


def app_files() -> Path:
    """Return where this installation has pyproject.toml, LICENSE and conf: a wheel in the package, others above it.

    Raises
    ------
    CommandError
        If it has none.
    """
    package = Path(fedstats_app.__file__).parent
    for place in (package / "app", package.parent):
        if (place / PROJECT).is_file() and (place / "conf").is_dir():
            return place
    raise CommandError(f"this installation in {package} has no {PROJECT} and conf: install fedstats-app anew")
