"""Versions that are supported, and those of this environment."""

import re
import tomllib
from pathlib import Path

import pytest

from fedstats_app.cli.check import versions
from fedstats_app.cli.check.versions import SUPPORTED, SUPPORTED_PYTHON, check_versions, supports

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


def test_the_table_is_that_of_the_project() -> None:
    bounds = {}
    for requirement in PROJECT["dependencies"]:
        if found := re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<([\d.]+))?", requirement):
            bounds[found[1]] = (found[2], found[3] or "")
    assert {name: bounds[name] for name in SUPPORTED} == SUPPORTED
    assert PROJECT["requires-python"] == ">={},<{}".format(*SUPPORTED_PYTHON)


@pytest.mark.parametrize(
    ("version", "first", "below", "expected"),
    [
        ("2.6.0+cu124", "2.6", "", True),
        ("2.5.9", "2.6", "", False),
        ("2.10", "2.9", "", True),
        ("1.42.0", "1.41.0", "2", True),
        ("2.0.0", "1.41.0", "2", False),
        ("2", "2.0.0", "", True),
        ("2.6.0rc1", "2.6", "", True),
        ("unknown", "1", "", False),
    ],
)
def test_versions_are_compared_by_number(version: str, first: str, below: str, expected: bool) -> None:
    assert supports(version, first, below) is expected


def test_this_environment_is_supported() -> None:
    findings = {finding.check: finding for finding in check_versions(simulation=True)}
    assert findings["Python"].level == findings["libraries"].level == "ok"
    assert "torch " in findings["libraries"].message


def test_what_is_missing_or_too_old_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {name: first for name, (first, _) in SUPPORTED.items()} | {"torch": "2.5.1", "flwr": ""}
    monkeypatch.setattr(versions, "installed_version", lambda name: installed.get(name, ""))
    monkeypatch.setattr(versions.platform, "python_version", lambda: "3.10.4")
    python, libraries, simulation = check_versions(simulation=True)
    assert python.level == "FAIL" and libraries.level == "FAIL"
    assert "torch 2.5.1 is not supported (needed: from 2.6)" in libraries.message
    assert "flwr is not installed (needed: from 1.41.0, below 2)" in libraries.message
    assert "numpy" not in libraries.message
    assert simulation.level == "warning" and "ray is not installed" in simulation.message


def test_a_supernode_needs_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    found = versions.installed_version
    monkeypatch.setattr(versions, "installed_version", lambda name: "" if name == "ray" else found(name))
    assert [finding.level for finding in check_versions(simulation=False)] == ["ok", "ok", "ok"]
