"""Several options of one method in one run: names that tell them apart, the same statistics, heads as of runs apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.methods import METHODS, display_name, head_parts, is_method, varied
from fedstats_app.methods.fed3r import Fed3ROptions
from fedstats_app.methods.fedcof import FedCOFOptions
from fedstats_app.report.classifier import load
from fedstats_app.report.head_file import read_head
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError
from tests.support.simulation import simulate

GAMMAS = ("fedcof@shrinkage=0.1", "fedcof@shrinkage=1", "fedcof@shrinkage=10")
WITHOUT = "fed3r@between-class=false@ridge-lambda=5"


def test_a_variant_has_its_own_values_and_the_runs_others() -> None:
    config = AppConfig.of(method=f"fedcof,{GAMMAS[0]},{WITHOUT}", fedcof_between_class=True, fed3r_solver="pinv32")
    assert config.methods == ("fedcof", GAMMAS[0], WITHOUT)
    assert config.options_of("fedcof") == FedCOFOptions(between_class=True)
    assert config.options_of(GAMMAS[0]) == FedCOFOptions(0.1, between_class=True)
    assert config.options_of(WITHOUT) == Fed3ROptions(5.0, between_class=False, solver="pinv32")
    assert [one.name for one in config.configured_methods.values()] == list(config.methods)
    assert AppConfig.from_run_config(config.to_run_config()) == config


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("fedcof@shrinkag=1", "no option shrinkag; there are shrinkage, between-class"),
        ("fedcof@shrinkage=-1", "a variant is METHOD@OPTION=VALUE"),
        ("fedcof@shrinkage=much", "fedcof-shrinkage: must be a number in [0, inf] or \"auto\", got 'much'"),
        ("fedcof@shrinkage=1@shrinkage=2", "shrinkage is given twice"),
        ("fedcof@shrinkage", "a variant is METHOD@OPTION=VALUE"),
        ("fedkov@shrinkage=1", "some of fedncm, fed3r"),
        ("fedcof@shrinkage=1,fedcof@shrinkage=1", "must name each once"),
        ("fedcof@shrinkage=1,all", "some of fedncm, fed3r"),
        ("fed3r@fit-bias=true@between-class=false", "fed3r-fit-bias: true needs fed3r-between-class true"),
        # One pass has one kind of rows, and from four means FedCOF is another head than from one.
        ("fedcof,fedcof@means-per-class=4", "means per class, got fedcof: 1, fedcof@means-per-class=4: 4"),
        (",".join(f"fedcof@shrinkage={number}" for number in range(17)), "at most 16"),
    ],
)
def test_what_is_wrong_with_a_variant_is_said(value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AppConfig.of(method=value)
    assert said in str(caught.value)


def test_a_variant_that_contradicts_the_runs_options_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="method: fed3r@fit-bias=true: fed3r-fit-bias: true needs fed3r-between-class"
    ):
        AppConfig.of(method="fed3r@fit-bias=true", fed3r_between_class=False)


def test_names() -> None:
    assert display_name(WITHOUT) == "Fed3R (between-class false, ridge-lambda 5)"
    assert head_parts(f"{WITHOUT}-probe-no-bias") == (WITHOUT, "probe-no-bias")
    assert head_parts("fedcof@shrinkage=1e-5-full") == ("fedcof@shrinkage=1e-5", "full")
    assert head_parts("fedcof-probe") == ("fedcof", "probe")
    assert head_parts("random-probe") == ("random", "probe")
    assert is_method(WITHOUT) and not is_method("random@x=1")
    with pytest.raises(ConfigError, match="start-head"):
        AppConfig.of(method="fedcof", fine_tune="probe", start_head=GAMMAS[0])


@given(
    st.sampled_from(sorted(METHODS)),
    st.sampled_from(["probe", "full", "probe-no-bias", ""]),
    st.floats(1e-30, 1e30, allow_nan=False),
)
def test_any_name_comes_apart_again(method: str, stage: str, value: float) -> None:
    variant = f"{method}@shrinkage={value!r}".replace("e+", "e")
    assert head_parts(f"{variant}-{stage}" if stage else variant) == (variant, stage)
    if "shrinkage" in METHODS[method].options.keys() or f"{method}-shrinkage" in METHODS[method].options.keys():  # noqa: SIM118
        assert varied(METHODS[method].options(), variant).to_config()[f"{method}-shrinkage"] == value


def test_one_pass_gives_the_heads_of_runs_apart(tmp_path: Path) -> None:
    together = simulate(tmp_path / "a", method=",".join((*GAMMAS, WITHOUT)), start_head=WITHOUT, fine_tune="probe",
                        num_server_rounds=1, plots=True)  # fmt: skip
    alone = [simulate(tmp_path / str(gamma), method="fedcof", fedcof_shrinkage=gamma) for gamma in (0.1, 1, 10)]
    for name, folder in zip(GAMMAS, alone, strict=True):
        head, metadata = read_head(together / "heads" / f"{name}.safetensors")
        other, _ = read_head(folder / "heads" / "fedcof.safetensors")
        assert torch.equal(head.weight, other.weight) and metadata["method"] == name
    results = json.loads((together / "results.json").read_text())
    assert list(results["methods"]) == [*GAMMAS, WITHOUT]
    sent = {name: entry["wire_bytes"] for name, entry in results["methods"].items()}
    assert len({sent[name] for name in GAMMAS}) == 1 and sent[GAMMAS[0]] < sent[WITHOUT]
    assert f"{WITHOUT}-probe" in results["training"]
    assert load(together, f"{WITHOUT}-probe").method == f"{WITHOUT}-probe"
    assert "Fed3R (between-class false, ridge-lambda 5), then probe" in (together / "heads" / "README.md").read_text()
    assert "FedCOF (shrinkage 0.1)" in (together / "report.html").read_text()


def test_a_variant_may_map_features_otherwise(tmp_path: Path) -> None:
    folder = simulate(tmp_path, method="fed3r,fed3r@random-features=40@kernel-width=2,fedcgs@random-features=30")
    assert len(json.loads((folder / "results.json").read_text())["methods"]) == 3


def test_ablations_come_from_the_same_pass_and_send_nothing_more(tmp_path: Path) -> None:
    ablations = "oracle,oracle@covariance=diagonal,fedcof@count-noise=laplace,fedcof@between-class=only@shrinkage=1"
    with_them = simulate(tmp_path / "a", method=f"fedcof,fed3r,{ablations}")
    without = simulate(tmp_path / "b", method="fedcof,fed3r")
    found, plain = (json.loads((folder / "results.json").read_text()) for folder in (with_them, without))
    assert found["wire_bytes_received"] == plain["wire_bytes_received"]
    assert found["methods"]["fedcof"]["accuracy"] == plain["methods"]["fedcof"]["accuracy"]
    sent = {name: entry["uplink_bytes"] for name, entry in found["methods"].items()}
    assert sent["oracle@covariance=diagonal"] == 2 * sent["fedcof"] < sent["oracle"]
    assert "oracle" not in AppConfig().methods
    # The oracle is the most accurate of them, or as good: it is not what to take.
    advised = {step["method"] for step in found["advice"]["steps"]} | {found["advice"]["method"]}
    assert advised <= {"fedcof", "fed3r", "fedcof@between-class=only@shrinkage=1"}
