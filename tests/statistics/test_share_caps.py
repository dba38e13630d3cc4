"""Caps on shares: nobody has more, who has less is as before, and what is left are statistics of possible samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.rank_rule import RankRule
from fedstats_app.statistics import ClientStatistics, ScatterSpec, StatisticsSpec
from fedstats_app.statistics.share_caps import ShareCaps, capped, level, share_weights
from tests.support.clients import NUM_CLASSES, Clients

CLIENTS = Clients(12)
EVERYTHING = StatisticsSpec(gram=True, scatter=ScatterSpec(RankRule.parse("full"), "float32"))


def statistics(client: int) -> ClientStatistics:
    made = EVERYTHING.from_features(*CLIENTS.part(client), NUM_CLASSES)
    factor = made.scatter_factor()
    assert factor is not None
    return made.with_scatter(factor)


def counts(client: ClientStatistics) -> torch.Tensor:
    return client.rows.summed().class_counts


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=12), st.integers(0, 10**5), st.floats(0.01, 0.99))
def test_the_level_is_the_largest_that_keeps_the_cap(sizes: list[int], others: int, cap: float) -> None:
    n = torch.tensor(sizes, dtype=torch.float64)

    def most(t: float) -> float:
        return cap * (others + float(n.clamp(max=t).sum()))

    t = level(n, float(others), cap)

    assert t <= most(t) * (1 + 1e-9) or (t == min(sizes) and len(sizes) * cap <= 1.0)
    assert t * 1.001 > most(t * 1.001) or t >= max(sizes)


def test_a_level_by_hand() -> None:
    assert level(torch.tensor([1000.0, 80.0, 80.0]), 0.0, 0.5) == 160.0
    assert level(torch.tensor([1000.0, 80.0, 80.0]), 0.0, 0.2) == 80.0  # three cannot all keep a fifth: all alike
    assert level(torch.tensor([1000.0]), 1000.0, 0.2) == 250.0
    assert level(torch.tensor([10.0, 20.0]), 0.0, 1.0) == 20.0


@pytest.mark.parametrize("caps", [ShareCaps(0.3), ShareCaps(1.0, 0.15), ShareCaps(0.4, 0.2)], ids=str)
def test_nobody_has_more_than_its_share(caps: ShareCaps) -> None:
    table = [torch.full((NUM_CLASSES,), 100) for _ in range(12)]
    table[3] = torch.full((NUM_CLASSES,), 50_000)
    table[5] = torch.tensor([0, 9000, 0, 0, 0, 0])

    left = torch.stack(table) * share_weights(table, torch.zeros(NUM_CLASSES, dtype=torch.int64), caps)

    assert float((left / left.sum(dim=0)).max()) <= caps.of_class + 1e-4
    assert float((left.sum(dim=1) / left.sum()).max()) <= caps.of_all + 1e-4
    assert torch.equal(left[0], table[0].double())


def test_without_too_large_shares_everything_is_as_it_was() -> None:
    given = [statistics(client) for client in range(12)]
    table = [counts(one) for one in given]
    weights = share_weights(table, torch.zeros(NUM_CLASSES, dtype=torch.int64), ShareCaps(1.0, 0.9))

    assert all(capped(one, weight) is one for one, weight in zip(given, weights, strict=True))


def test_samples_of_earlier_runs_are_not_cut_and_count_for_the_shares() -> None:
    [weights] = share_weights([torch.tensor([1000, 0])], torch.tensor([1000, 50]), ShareCaps(0.2))

    assert weights.tolist() == [0.25, 1.0]
    assert share_weights([], torch.tensor([1, 2]), ShareCaps(0.2)).shape == (0, 2)


def test_what_is_left_are_statistics_of_possible_samples() -> None:
    client = statistics(1)
    weights = torch.tensor([1.0, 0.5, 0.1, 0.3, 1.0, 0.7], dtype=torch.float64)

    less = capped(client, weights)

    torch.testing.assert_close(less.rows.means, client.rows.means)
    expected = (weights[client.rows.class_ids] * client.rows.counts).round().clamp(min=1).to(torch.int64)
    assert torch.equal(less.rows.counts, expected)
    share = float(expected.sum()) / client.rows.num_examples
    for before, after in ((client, less),):
        assert before.gram is not None and after.gram is not None and before.scatter and after.scatter
        torch.testing.assert_close(within(after), share * within(before))
        torch.testing.assert_close(after.scatter.scaled().T @ after.scatter.scaled(), within(after), check_dtype=False)
        assert float(torch.linalg.eigvalsh(within(after)).min()) > -1e-9


def within(client: ClientStatistics) -> torch.Tensor:
    """Return the scatter about the rows' means."""
    assert client.gram is not None
    scaled = client.rows.class_sums / client.rows.counts.double().sqrt().unsqueeze(1)
    return client.gram - scaled.T @ scaled
