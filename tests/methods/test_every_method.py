"""What holds for every record: names, options, requests; and for variants of a method in one run."""

import functools
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.option import ConfigError, Options
from fedstats_app.heads.evidence import label_evidence
from fedstats_app.methods import METHODS, Method, Need, display_name, head_parts, is_method, varied
from fedstats_app.methods.fed3r import Fed3ROptions
from fedstats_app.methods.fedcof import FedCOFOptions
from fedstats_app.report.classifier import load
from fedstats_app.report.head_file import read_head
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from tests.support.clients import NUM_CLASSES, Clients
from tests.support.options import configured, variations
from tests.support.simulation import simulate

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@functools.cache
def total(spec: StatisticsSpec, *, keep_rows: bool) -> StatisticsSum:
    clients = Clients()
    parts = [spec.from_features(*clients.part(number), NUM_CLASSES, seed=1) for number in range(clients.num_clients)]
    dim, scatter = parts[0].rows.feature_dim, spec.scatter is not None
    merged = StatisticsSum(NUM_CLASSES, dim, gram=spec.gram, keep_rows=keep_rows, scatter=scatter)
    for part in parts:
        merged.add(part)
    return merged


def test_records_are_read_without_torch_and_flower() -> None:
    code = "import sys; from fedstats_app.methods import METHODS; assert not {'torch', 'flwr'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@every_method
def test_names(method: type[Method[Options]]) -> None:
    assert METHODS[method.name] is method
    assert method.name == method.name.lower() and method.name.isalnum()
    assert method.name not in {one.name for one in fields(AppConfig)}
    assert display_name(method.name) == method.display_name and method.paper


def test_methods_are_spelled_as_their_papers_spell_them() -> None:
    names = [display_name(method) for method in ("fedncm", "fed3r", "fedcof", "fedcgs", "fedroot", "mine")]
    assert names == ["FedNCM", "Fed3R", "FedCOF", "FedCGS", "FedRoot", "mine"]


@every_method
def test_options_survive_the_way_through_the_configuration(method: type[Method[Options]]) -> None:
    for options in variations(method.options_type()):
        config = AppConfig.from_run_config({"method": method.name, **options.to_config()})
        assert config.options_of(method.name) == options
        assert AppConfig.from_run_config(config.to_run_config()) == config


@every_method
def test_needs_are_all_that_some_options_ask_for(method: type[Method[Options]]) -> None:
    assert method.needs == {need for one in configured(method.name) for need in Need.of(one.specification)}


GAMMAS = ("fedcof@shrinkage=0.1", "fedcof@shrinkage=10")
WITHOUT = "fed3r@between-class=false@ridge-lambda=5"


def test_a_variant_has_its_own_values_and_the_runs_others() -> None:
    config = AppConfig.of(
        method=f"fedcof,{GAMMAS[0]},{WITHOUT}", fedcof={"between_class": True}, fed3r={"solver": "pinv32"}
    )
    assert config.methods == ("fedcof", GAMMAS[0], WITHOUT)
    assert config.options_of("fedcof") == FedCOFOptions(between_class=True)
    assert config.options_of(GAMMAS[0]) == FedCOFOptions(0.1, between_class=True)
    assert config.options_of(WITHOUT) == Fed3ROptions(5.0, between_class=False, solver="pinv32")
    assert [one.full_name for one in config.configured_methods.values()] == list(config.methods)
    assert AppConfig.from_run_config(config.to_run_config()) == config


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("fedcof@shrinkag=1", "no option shrinkag; there are shrinkage, between-class"),
        ("fedcof@shrinkage=-1", "a variant is METHOD@OPTION=VALUE"),
        ("fedcof@shrinkage=much", "fedcof.shrinkage: must be a number in [0, inf] or \"auto\", got 'much'"),
        ("fedcof@shrinkage=1@shrinkage=2", "shrinkage is given twice"),
        ("fedcof@shrinkage", "a variant is METHOD@OPTION=VALUE"),
        ("fedkov@shrinkage=1", "some of fedncm, fed3r"),
        ("fedcof@shrinkage=1,fedcof@shrinkage=1", "must name each once"),
        ("fedcof@shrinkage=1,all", "some of fedncm, fed3r"),
        ("fedcof@between-class=only", "fedcof.between-class: only needs a number for fedcof.shrinkage"),
        ("fedroot,fedroot@rank=4", "one run asks for one rank of the scatter's factors, got fedroot: "),
        (",".join(f"fedcof@shrinkage={number}" for number in range(17)), "at most 16"),
    ],
)
def test_what_is_wrong_with_a_variant_is_said(value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AppConfig.of(method=value)
    assert said in str(caught.value)


def test_a_variant_that_contradicts_the_runs_options_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method: fedcof@shrinkage=auto: fedcof.between-class: only needs a number"):
        AppConfig.of(method="fedcof@shrinkage=auto", fedcof={"between_class": "only", "shrinkage": 1.0})


def test_names_of_variants() -> None:
    assert display_name(WITHOUT) == "Fed3R (between-class false, ridge-lambda 5)"
    assert head_parts(f"{WITHOUT}-probe-no-bias") == (WITHOUT, "probe-no-bias")
    assert head_parts("fedcof@shrinkage=1e-5-full") == ("fedcof@shrinkage=1e-5", "full")
    assert head_parts("fedcof-probe") == ("fedcof", "probe") and head_parts("random-probe") == ("random", "probe")
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
    options, key = METHODS[method].options_type(), f"{method}.shrinkage"
    if key in options.to_config():
        assert varied(options, variant).to_config()[key] == value


def test_one_pass_gives_the_heads_of_runs_apart(tmp_path: Path) -> None:
    together = simulate(tmp_path / "a", method=",".join((*GAMMAS, WITHOUT)), start_head=WITHOUT, fine_tune="probe",
                        num_server_rounds=1)  # fmt: skip
    alone = [simulate(tmp_path / str(gamma), method="fedcof", fedcof={"shrinkage": gamma}) for gamma in (0.1, 10)]
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
    page = (together / "report.html").read_text()
    assert "Fed3R (between-class false, ridge-lambda 5), then probe" in page and "FedCOF (shrinkage 0.1)" in page


def test_methods_and_the_evidence_of_one_sum_decompose_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics = total.__wrapped__(StatisticsSpec(gram=True), keep_rows=False)  # of which no other test has asked
    decomposed, eigh = list[torch.Tensor](), torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: decomposed.append(matrix) or eigh(matrix))
    for name in ("fed3r", "fedcgs"):
        METHODS[name].default().head(statistics)
    label_evidence(statistics.shared())
    assert len(decomposed) == 1


@pytest.mark.parametrize("method", [variant for name in METHODS for variant in configured(name)], ids=str)
def test_a_method_with_the_regularisers_of_its_head_makes_the_same_head(method: Method[Options]) -> None:
    statistics = total(method.specification, keep_rows=method.keeps_rows)
    head = method.head(statistics)
    again = method.regularised(head.report).head(statistics)
    assert torch.allclose(again.weight, head.weight, rtol=1e-9) and torch.allclose(again.bias, head.bias, rtol=1e-9)
