import tomllib
from pathlib import Path

import pytest

import fedstats_app
from fedstats_app.report.classifier import load


def test_version_is_that_of_pyproject() -> None:
    path = Path(fedstats_app.__file__).parents[1] / "pyproject.toml"
    assert fedstats_app.__version__ == tomllib.loads(path.read_text())["project"]["version"]


def test_load_is_found_on_first_use() -> None:
    assert fedstats_app.load is load and {"load", "replay", "simulate"} < set(dir(fedstats_app))


def test_other_names_are_not_found() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unload'"):
        fedstats_app.unload  # noqa: B018
