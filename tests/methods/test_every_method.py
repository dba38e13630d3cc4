"""What holds for every record: names, options, what it asks clients for, what the server measures, personal heads."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from fedstats_app.methods import METHODS, PERSONAL_METHODS, RECORDS, ConfiguredMethod, Method, Needs, display_name
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import Options
from fedstats_app.statistics import StatisticsSum
from tests.support.clients import NUM_CLASSES, Clients
from tests.support.compare import same_bits
from tests.support.options import configured, variations

RANDOM = "fed3r@random-features=7"
every_method = pytest.mark.parametrize("method", RECORDS.values(), ids=RECORDS)
every_personal_method = pytest.mark.parametrize("method", PERSONAL_METHODS)


def total(method: ConfiguredMethod) -> StatisticsSum:
    spec, clients = method.specification, Clients()
    parts = [spec.from_features(*clients.part(number), NUM_CLASSES, seed=1) for number in range(clients.num_clients)]
    merged = StatisticsSum(
        NUM_CLASSES,
        parts[0].rows.feature_dim,
        gram=spec.gram,
        keep_rows=method.method.keeps_rows,
        scatter=spec.scatter is not None,
    )
    for part in parts:
        merged.add(part)
    return merged


def test_records_are_read_without_torch_and_flower() -> None:
    code = "import sys; from fedstats_app.methods import METHODS; assert not {'torch', 'flwr'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@every_method
def test_names(method: Method[Options]) -> None:
    assert RECORDS[method.name] is method
    assert method.name == method.name.lower() and method.name.isalnum()
    assert method.name not in {one.name for one in fields(AppConfig)}
    assert display_name(method.name) == method.display_name
    assert method.paper


def test_methods_are_spelled_as_their_papers_spell_them() -> None:
    names = [display_name(method) for method in ("fedncm", "fed3r", "fedcof", "fedcgs", "fedroot", "mine")]
    assert names == ["FedNCM", "Fed3R", "FedCOF", "FedCGS", "FedRoot", "mine"]


@every_method
def test_options_survive_the_way_through_the_configuration(method: Method[Options]) -> None:
    for options in variations(method.options()):
        values, usual = options.to_config(), method.options().to_config()
        keyed = {key: values[key] for key in method.options.run_keys()}
        rare = {key: value for key, value in values.items() if key not in keyed and value != usual[key]}
        changes = [f"@{key.removeprefix(options.prefix)}={str(value).lower()}" for key, value in rare.items()]
        name = "".join([method.name, *changes])
        config = AppConfig.from_run_config({"method": name, **keyed})
        assert config.options_of(name) == options
        assert AppConfig.from_run_config(config.to_run_config()) == config


@every_method
def test_no_options_make_a_method_exceed_its_needs(method: Method[Options]) -> None:
    for one in configured(method.name):
        assert method.needs.missing(one.specification) == ()


@every_method
def test_needs_are_not_larger_than_what_some_options_ask_for(method: Method[Options]) -> None:
    specs = [one.specification for one in configured(method.name)]
    assert method.needs == Needs(
        any(spec.gram for spec in specs),
        any(spec.means_per_class > 1 for spec in specs),
        any(spec.feature_map.kind != "identity" for spec in specs),
        any(spec.scatter is not None for spec in specs),
    )


@every_method
def test_nothing_is_measured_where_nothing_needs_it(method: Method[Options]) -> None:
    assert method.measure(method.options(), None, pytest.fail) == method.options()


def test_a_kernel_width_is_measured_on_the_servers_features_or_given() -> None:
    said: list[str] = []
    config = AppConfig.of(method=RANDOM)
    with pytest.raises(ValueError, match="fed3r@kernel-width must be a number here, got auto"):
        _ = config.configured_methods[RANDOM].specification
    with pytest.raises(ValueError, match="where the server has no test data to measure it on, got auto"):
        config.measured(None, said.append)
    measured = config.measured(lambda: torch.tensor([[0.0], [3.0], [4.0]]), said.append)
    assert measured.options_of(RANDOM).kernel_width == 3.0
    assert said == ["fed3r@kernel-width: median distance between the server's test features, 3"]


@every_personal_method
def test_a_mixture_of_everything_is_solved_as_the_federation_was(method: str) -> None:
    for one in configured(method):
        merged = total(one)
        head = one.solve(merged)
        fixed = one.fixed(head.report.parameters)
        sums = one.sums(merged)
        same = fixed.solve_mixture(sums, 1.0)
        assert same_bits(same.weight, head.weight) and same_bits(same.bias, head.bias)
        # All samples twice, with a regulariser for as many, is the same head but for rounding and N - 1.
        twice = fixed.solve_mixture(sums + sums, 2.0)
        assert torch.allclose(twice.weight, head.weight, rtol=0.05, atol=0.05 * float(head.weight.abs().max()))


def test_a_regulariser_that_is_still_to_be_chosen_is_refused() -> None:
    with pytest.raises(ValueError, match="ridge_lambda must be a number for a personal head, got auto"):
        METHODS["fed3r"].configured().scaled(1.0)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in PERSONAL_METHODS])
def test_other_methods_have_no_personal_heads(method: str) -> None:
    with pytest.raises(ValueError, match=f"{method} has no personal heads"):
        METHODS[method].configured().fixed({})
