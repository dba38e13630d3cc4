"""The page about adding a method, done to a copy of the package: the new method is wherever the others are."""

import json
from pathlib import Path

import pytest

from tests.docs.changed_copy import apply, changed_copy, python, run_app
from tests.docs.markdown import DOCS, blocks

PAGE = DOCS / "add-a-method.md"

# Two nodes' owners say for which methods theirs works.
ALLOWED = ({}, {"allowed-methods": "feddiag,training"}, {"allowed-methods": "fedncm,training"})
KEYS = """
import tomllib, pathlib, torch
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import FeatureStatistics
declared = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
assert AppConfig().to_run_config() == declared
method = AppConfig.of(feddiag_shrinkage=0.25).configured_methods["feddiag"]
statistics = FeatureStatistics.from_features(torch.rand(9, 4), torch.arange(9) % 3, 3)
print(method.method.solve(statistics, method.options).report.regulariser)
import inspect
from fedstats_app.strategies import FedDiag
assert inspect.signature(FedDiag).parameters["shrinkage"].default == 0.01 and "shrinkage : float" in FedDiag.__doc__
assert FedDiag(3, shrinkage=0.25).methods()["feddiag"].options == method.options
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the two files and the one line of the page."""
    return changed_copy(tmp_path_factory.mktemp("copy"), PAGE, num_files=2)


@pytest.fixture(scope="module")
def settings(
    tmp_path_factory: pytest.TempPathFactory, run_config: dict[str, str | int | float | bool]
) -> dict[str, object]:
    """The new method beside another one, a start of training, and personal heads."""
    return {
        **run_config,
        "method": "fedncm,feddiag",
        "start-head": "feddiag",
        "personalise": "global,closed-form",
        "plots": True,
        "output-dir": str(tmp_path_factory.mktemp("runs")),
    }


def test_the_new_method_is_wherever_the_others_are(copy: Path, settings: dict[str, object]) -> None:
    printed = run_app(copy, settings, ALLOWED)

    [folder] = Path(str(settings["output-dir"])).iterdir()
    results = json.loads((folder / "results.json").read_text())
    assert list(results["methods"]) == ["fedncm", "feddiag"]
    found = results["methods"]["feddiag"]
    assert found["regulariser"] == "shrinkage 0.01 (diagonal)" and found["accuracy"] > 0.9
    assert found["uplink_bytes"] == results["methods"]["fedncm"]["uplink_bytes"] + 4 * 4 * 32**2
    assert set(results["training"]) == {"feddiag-probe"}
    assert {"global-feddiag", "closed-form-feddiag"} <= set(results["personal"])
    assert results["personal"]["closed-form-feddiag"]["num_test"]
    for words in ("\nFedDiag ", "global head, FedDiag", "closed form, FedDiag"):
        assert words in printed
    assert {path.name for path in (folder / "heads").glob("*.safetensors")} >= {"feddiag.safetensors"}
    card = (folder / "heads" / "README.md").read_text()
    assert "| `feddiag` | FedDiag | shrinkage 0.01 (diagonal) |" in card
    sent = "for each of its classes the number of samples and the sum of their features, and one Gram matrix"
    assert f"- `feddiag`: every client sent {sent}." in card
    plots = {"accuracy-vs-megabytes.png", "confusion-matrix-feddiag.png", "fine_tuning.png", "personal.png"}
    assert plots <= {path.name for path in (folder / "plots").iterdir()}
    outcomes = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    # The clients of the third node, whose owner allows FedNCM only.
    assert {one["client"]: one["outcome"] for one in outcomes} == {
        client: "refused" if client % 3 == 2 else "merged" for client in range(6)
    }
    assert "a Gram matrix: needed by none of this node's allowed-methods (fedncm, training)" in outcomes[2]["reason"]


def test_check_forecasts_its_cost(copy: Path, settings: dict[str, object]) -> None:
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    (copy / "run.toml").write_text("\n".join(lines))
    findings = json.loads(
        python(copy, "-m", "fedstats_app.cli", "check", "--data", "--run-config", "run.toml", "--json")
    )
    [sent] = [finding["message"] for finding in findings["findings"] if finding["check"] == "bytes up"]
    # Six clients with three classes of 32 features in half precision, and the factor of a Gram matrix from each.
    assert "feddiag 10.8 kB" in sent


def test_a_key_of_its_own_takes_an_option_and_a_line_of_pyproject(copy: Path) -> None:
    apply(blocks(PAGE, "diff")[1].code, copy)
    assert python(copy, "-c", KEYS) == "shrinkage 0.25 (diagonal)\n"


def test_a_key_of_any_group_takes_two_edits(copy: Path, settings: dict[str, object], tmp_path: Path) -> None:
    options, declared = copy / "fedstats_app" / "data" / "data_options.py", copy / "pyproject.toml"
    place = "    holdout_fraction: float = option("
    options.write_text(options.read_text().replace(place, f"    lucky_number: int = option(7, whole(1, 9))\n{place}"))
    line = "lucky-number = 7                    # of nothing\n"
    declared.write_text(declared.read_text().replace("num-clients = 100 ", f"{line}num-clients = 100 "))
    own = {**settings, "output-dir": str(tmp_path / "runs"), "personalise": "none", "fine-tune": "none"}
    run_app(copy, {**own, "lucky-number": 8}, ({},))
    [folder] = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "config.json").read_text())["run_config"]["lucky-number"] == 8
    with pytest.raises(AssertionError, match="lucky-number: must be a whole number from 1 to 9, got 10"):
        run_app(copy, {**own, "lucky-number": 10}, ({},))
