"""requirements-dev.txt pins what pyproject.toml asks for, names no registry, and is made by CONTRIBUTING's command."""

import re
import tomllib

from packaging.requirements import Requirement

from tests.support.commands import REPOSITORY

LOCK = REPOSITORY / "requirements-dev.txt"
PINS = [Requirement(line) for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]


def test_everything_is_pinned_to_a_version_that_the_project_takes() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    asked = [Requirement(one) for one in project["dependencies"] + project["optional-dependencies"]["dev"]]
    assert all([one.operator for one in pin.specifier] == ["=="] and pin.url is None for pin in PINS)
    for one in asked:
        pins = [pin for pin in PINS if pin.name == one.name]
        versions = [next(iter(pin.specifier)).version for pin in pins]
        assert versions and all(one.specifier.contains(version, prereleases=True) for version in versions), one


def test_it_says_its_command_and_no_registry() -> None:
    (command,) = re.findall(r"uv pip compile .*", (REPOSITORY / "CONTRIBUTING.md").read_text())
    text = LOCK.read_text()
    assert command.replace(" --upgrade", "").split() == re.findall(r"uv pip compile .*", text)[0].split()
    assert "://" not in text and not re.search(r"^\s*-", text, re.MULTILINE)
