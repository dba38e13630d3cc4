"""`fedstats new`: a folder that Flower takes, with the app's settings and the installed code."""

import shutil
import tomllib
from pathlib import Path

import pytest
from flwr.cli.config_utils import load_and_validate
from flwr.common.config import parse_config_args

import fedstats_app
from fedstats_app.cli import main
from fedstats_app.cli.new import app_files
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.wire import PROTOCOL_VERSION

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    assert main(["new", str(tmp_path / "app")]) == 0
    return tmp_path / "app"


def test_flower_takes_the_folder(made: Path) -> None:
    config, warnings = load_and_validate(made / "pyproject.toml", check_module=True)
    assert config and not warnings


def test_settings_and_comments_are_the_app_s_own(made: Path) -> None:
    own, app = (tomllib.loads((path / "pyproject.toml").read_text()) for path in (made, REPOSITORY))
    assert own["tool"]["flwr"]["app"]["config"] == app["tool"]["flwr"]["app"]["config"]
    assert own["tool"]["flwr"]["app"]["components"] == app["tool"]["flwr"]["app"]["components"]
    assert own["tool"]["fedstats"]["protocol-version"] == PROTOCOL_VERSION
    assert own["project"]["version"] == fedstats_app.__version__
    assert "# same seed, same bytes" in (made / "pyproject.toml").read_text()


def test_examples_are_there_and_right(made: Path) -> None:
    names = {path.name for path in (REPOSITORY / "conf").iterdir()}
    assert {path.name for path in (made / "conf").iterdir()} == names
    AppConfig.from_run_config(parse_config_args([str(made / "conf" / "probe.toml")]))


def test_what_is_there_is_left_alone(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / "pyproject.toml").read_bytes()
    assert main(["new", str(made)]) == 2 and "must not be there, or be an empty folder" in capsys.readouterr().err
    assert (made / "pyproject.toml").read_bytes() == before


def test_a_wheel_has_them_in_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "fedstats_app"
    shutil.copytree(REPOSITORY / "conf", package / "app" / "conf")
    shutil.copy(REPOSITORY / "pyproject.toml", package / "app")
    monkeypatch.setattr(fedstats_app, "__file__", str(package / "__init__.py"))
    assert app_files() == package / "app"
    shutil.rmtree(package / "app")
    assert main(["new", str(tmp_path / "other")]) == 2
