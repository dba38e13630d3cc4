"""Alternatives to FedRoot's choices are compared at the same bytes, and the default among them is FedRoot."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedstats_app.methods import FEDROOT
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import StatisticsSum
from fedstats_app.wire.statistics_records import with_scatter
from research.benchmarks import low_rank
from research.benchmarks.low_rank import DEFAULT, RULE, Compared
from tests.research.benchmarks.conftest import SETTINGS
from tests.support.compare import relative_difference


@pytest.fixture
def clients() -> low_rank.Clients:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 24, generator=generator, dtype=torch.float64) * torch.logspace(0, -1, 24)
    labels = torch.arange(400) % 5
    parts = np.split(np.arange(400), [3, 10, 50, 170])
    return low_rank.client_factors(features, labels, [*parts, np.array([], dtype=np.int64)], 5)


def test_all_rules_send_nearly_as_many_directions(clients: low_rank.Clients) -> None:
    found = low_rank.ranks(clients)
    total = sum(found[RULE])
    assert total == 0 + 2 + 6 + 11 + 15  # one sample of each class scatters nowhere
    for rule, ranks in found.items():
        assert total - len(clients) <= sum(ranks) <= total, rule
        assert all(0 <= rank <= len(factor) for rank, (_, factor) in zip(ranks, clients, strict=True))
    assert len({tuple(ranks) for ranks in found.values()}) == len(found)


def test_the_default_is_fedroot(clients: low_rank.Clients) -> None:
    method = FEDROOT.configured(replace(AppConfig().options_of("fedroot"), factor_dtype="float16"))
    spec = method.specification
    assert spec.scatter is not None
    total = StatisticsSum(5, 24, gram=False, keep_rows=True, scatter=True)
    features = torch.randn(400, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    features = features * torch.logspace(0, -1, 24)
    for part in np.split(np.arange(400), [3, 10, 50, 170]):
        client = spec.from_features(features[part], torch.arange(400)[part] % 5, 5)
        total.add(with_scatter(client, spec.scatter, bytes_without=0))
    expected = method.sums(total).gram
    found = low_rank.completions(clients, 5)
    assert found[DEFAULT].gram is not None and expected is not None
    assert relative_difference(found[DEFAULT].gram, expected) <= 1e-12
    traces = [float(one.gram.trace()) for one in found.values() if one.gram is not None]
    assert traces == pytest.approx([float(expected.trace())] * len(found))


def test_a_run_has_a_line_for_each_split(measured: Callable[..., list[Compared]]) -> None:
    found = measured(low_rank, Compared, SETTINGS, "--clients", "40", "--seeds", "1")
    assert [one.split for one in found] == ["iid", "dirichlet 0.1"]


def test_the_table_says_how_much_better_alternatives_are() -> None:
    def line(*accuracies: float) -> Compared:
        names = (f"ridge: {DEFAULT}", f"within: {DEFAULT}", "ridge: sqrt(n), w = 0")
        return Compared("one", "iid", 5, 5, dict(zip(names, accuracies, strict=True)))

    table = low_rank.table([line(80.0, 81.0, 79.0), line(70.0, 69.9, 70.1)]).splitlines()
    assert table[2] == "| within | instead of the ridge | 2 | +0.45 | -0.10 | +1.00 | 1 | 0 |"
    assert table[3] == "| ridge | w = 0 | 2 | -0.45 | -1.00 | +0.10 | 0 | 1 |"
