"""The page about adding a method, done to one copy of the package: it is wherever the others are."""

import json
from pathlib import Path

import pytest

from fedstats_app.training.trainers import TRAINERS
from tests.docs.changed_copy import changed_copy, python, run_app
from tests.docs.markdown import DOCS, REPOSITORY, items

PAGE, TRAINERS_PAGE = REPOSITORY / "research" / "add-a-method.md", DOCS / "methods" / "fine-tuning.md"
# Two nodes' owners say for which methods theirs works.
ALLOWED = ({}, {"allowed-methods": "feddiag"}, {"allowed-methods": "fedncm"})
# Any group's key takes two edits: in the class of its options, and in pyproject.toml.
FIELD, DECLARED = "    holdout_fraction: float = option(", "num-clients = 0 "
LUCKY = "    lucky_number: int = option(7, whole(1, 9))\n", "lucky-number = 7                    # of nothing\n"
KEYS = """
import tomllib, pathlib, torch
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.base.option import ConfigError, flattened
from fedstats_app.statistics import FeatureStatistics
declared = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
assert AppConfig().to_run_config() == flattened(declared)
method = AppConfig.of(feddiag={"shrinkage": 0.25}).configured_methods["feddiag"]
statistics = FeatureStatistics.from_features(torch.rand(9, 4), torch.arange(9) % 3, 3)
print(method.solve(statistics).report.regulariser)
from fedstats_app.strategies.closed_form import FedDiag
assert FedDiag(3, shrinkage=0.25).methods()["feddiag"].options == method.options
try:
    AppConfig.of(lucky_number=10)
except ConfigError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with a method and its Strategy class."""
    root = changed_copy(tmp_path_factory.mktemp("copy"), PAGE, num_files=2)
    for file, place, new in (("fedstats_app/data/data_options.py", FIELD, 0), ("pyproject.toml", DECLARED, 1)):
        text = (root / file).read_text()
        assert text.count(place) == 1
        (root / file).write_text(text.replace(place, LUCKY[new] + place))
    return root


@pytest.fixture(scope="module")
def settings(
    tmp_path_factory: pytest.TempPathFactory, run_config: dict[str, str | int | float | bool]
) -> dict[str, object]:
    """The new method beside another one, and the start of the new training."""
    return {
        **run_config,
        "method": "fedncm,feddiag",
        "fine-tune": "probe",
        "start-head": "feddiag",
        "learning-rate": 0.5,
        "lucky-number": 8,
        "plots": True,
        "output-dir": str(tmp_path_factory.mktemp("runs")),
    }


@pytest.fixture(scope="module")
def printed(copy: Path, settings: dict[str, object]) -> str:
    return run_app(copy, settings, ALLOWED)


@pytest.fixture(scope="module")
def folder(printed: str, settings: dict[str, object]) -> Path:
    [made] = Path(str(settings["output-dir"])).iterdir()
    return made


def test_the_new_method_is_wherever_the_others_are(folder: Path, printed: str) -> None:
    results = json.loads((folder / "results.json").read_text())
    assert list(results["methods"]) == ["fedncm", "feddiag"]
    found = results["methods"]["feddiag"]
    assert found["regulariser"] == "shrinkage 0.01 (diagonal)" and found["accuracy"] > 0.9
    assert found["uplink_bytes"] == results["methods"]["fedncm"]["uplink_bytes"] + 4 * 4 * 32**2
    assert "\nFedDiag " in printed
    plots = {"accuracy-vs-megabytes.png", "fine_tuning.png"}
    assert plots <= {path.name for path in (folder / "plots").iterdir()}
    outcomes = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    # The clients of the third node, whose owner allows FedNCM only.
    assert {one["client"]: one["outcome"] for one in outcomes} == {
        client: "refused" if client % 3 == 2 else "merged" for client in range(6)
    }
    assert "a Gram matrix: needed by none of this node's allowed-methods (fedncm)" in outcomes[2]["reason"]


def test_the_page_lists_every_trainer() -> None:
    [said] = [values for key, values in items(TRAINERS_PAGE, "Training from the head") if key == "`fine-tune`"]
    assert said == "; ".join(["`none`", *(f"`{name}`: {trainer.tunes}" for name, trainer in TRAINERS.items())]) + ": "


def test_a_key_takes_an_option_and_a_line_of_pyproject(copy: Path, folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text())["run_config"]["lucky-number"] == 8
    regulariser, refused = python(copy, "-c", KEYS).split("\n", 1)
    assert regulariser == "shrinkage 0.25 (diagonal)"
    assert "lucky-number: must be a whole number from 1 to 9, got 10" in refused
