"""No class under the floor leaves in any form, and what leaves is what the remaining samples alone would give."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.privacy import NodePolicy, StatisticsAboveFloor, statistics_above_floor
from fedstats_app.privacy.suppression import rows_of_persons
from fedstats_app.statistics import ClientStatistics, ScatterSpec, StatisticsSpec
from fedstats_app.testing import instruction
from fedstats_app.wire import StatisticsRequest, read_statistics_reply, statistics_reply
from tests.support.compare import relative_difference, same_bits

NUM_CLASSES, DIM = 6, 4
SPEC = StatisticsSpec(gram=True, means_per_class=4)
REQUEST = StatisticsRequest(NUM_CLASSES, SPEC, wire_dtype="float64")


class Site:
    """Labelled features of which some cannot be read; it notes which samples were asked for."""

    def __init__(self, features: Tensor, labels: Tensor, unreadable: set[int], block: int = 7) -> None:
        self.features, self.labels, self.unreadable, self.block = features, labels, unreadable, block
        self.passes: list[list[int]] = []

    def blocks(self, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes.append(positions.tolist())
        for start in range(0, len(positions), self.block):
            found = [
                start + offset
                for offset, sample in enumerate(positions[start : start + self.block].tolist())
                if sample not in self.unreadable
            ]
            if found:
                yield self.features[positions[found]], torch.tensor(found)

    def under(self, policy: NodePolicy, spec: StatisticsSpec = SPEC) -> StatisticsAboveFloor:
        return statistics_above_floor(
            policy, spec, self.labels, self.blocks, num_classes=NUM_CLASSES, feature_dim=DIM, seed=1
        )

    def remaining(self, floor: int) -> Tensor:
        """Return, the long way, the readable samples whose class has enough of them."""
        readable = [i for i in range(len(self.labels)) if i not in self.unreadable]
        sizes = {c: sum(int(self.labels[i]) == c for i in readable) for c in range(NUM_CLASSES)}
        return torch.tensor([i for i in readable if sizes[int(self.labels[i])] >= floor], dtype=torch.int64)


def random_site(seed: int) -> Site:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 60))
    labels = rng.choice(NUM_CLASSES, n, p=rng.dirichlet(np.full(NUM_CLASSES, 0.5)))
    features = rng.normal(size=(n, DIM)) + labels[:, None] + 0.5
    unreadable = set(np.flatnonzero(rng.random(n) < rng.choice([0.0, 0.1, 0.5])).tolist())
    return Site(torch.from_numpy(features), torch.from_numpy(labels), unreadable)


def brute_force(site: Site, floor: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, sums and Gram matrix of the remaining samples."""
    kept = site.remaining(floor)
    features = site.features[kept].to(torch.float64)
    labels = site.labels[kept]
    counts = torch.bincount(labels, minlength=NUM_CLASSES)
    one_hot = torch.nn.functional.one_hot(labels, NUM_CLASSES).to(torch.float64)
    return counts, one_hot.T @ features, features.T @ features


@pytest.mark.parametrize("hundred", range(3))
def test_no_class_under_the_floor_leaves_random_partitions(hundred: int) -> None:
    """Through the wire: what the server reads is what is checked."""
    for seed in range(100 * hundred, 100 * hundred + 100):
        site, floor = random_site(seed), seed % 8
        collected = site.under(NodePolicy(floor))
        reply = statistics_reply(
            instruction(REQUEST.to_content()), collected.statistics, num_suppressed_classes=len(collected.suppressed)
        )
        received = read_statistics_reply(reply, REQUEST, feature_dim=DIM)
        client = received.statistics
        assert bool((client.rows.counts >= max(floor, 1)).all()), (seed, client.rows.counts)
        counts, sums, gram = brute_force(site, max(floor, 1))
        found = client.summed()
        scale = float(gram.trace()) or 1.0
        assert torch.equal(found.class_counts, counts), seed
        assert relative_difference(found.class_sums, sums, scale=scale**0.5) < 1e-12, seed
        assert found.gram is not None and relative_difference(found.gram, gram, scale=scale) < 1e-12, seed
        readable = {int(site.labels[i]) for i in range(len(site.labels)) if i not in site.unreadable}
        leaving = set(received.statistics.rows.class_ids.tolist())
        assert not leaving & set(collected.suppressed)
        # A class that was not worth reading counts as suppressed, whether or not its samples could have been read.
        assert readable - leaving <= set(collected.suppressed) <= set(site.labels.tolist()) - leaving
        assert received.num_suppressed_classes == len(collected.suppressed)


def at_once(site: Site, kept: Tensor) -> ClientStatistics:
    return SPEC.from_features(site.features[kept], site.labels[kept], NUM_CLASSES, seed=1)


@pytest.mark.parametrize("floor", [0, 1, 2, 5])
def test_where_nothing_is_suppressed_the_bytes_are_those_without_a_policy(floor: int) -> None:
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.permutation(np.repeat([0, 2, 5], 40)))  # 40 // 5 = 8 means would be allowed
    site = Site(torch.from_numpy(rng.normal(size=(120, DIM))), labels, set(), block=120)

    collected = site.under(NodePolicy(floor))

    client, expected = collected.statistics, at_once(site, torch.arange(120))
    assert same_bits(client.rows.counts, expected.rows.counts)
    assert same_bits(client.rows.class_sums, expected.rows.class_sums)
    assert client.gram is not None and expected.gram is not None and same_bits(client.gram, expected.gram)
    assert collected.suppressed == () and len(site.passes) == 1


def late_site(unreadable: set[int]) -> Site:
    """Class 0 has 20 samples and class 1 six: the floor of 5 holds, until images turn out to be unreadable."""
    rng = np.random.default_rng(1)
    labels = torch.tensor([0] * 20 + [1] * 6)
    return Site(torch.from_numpy(rng.normal(size=(26, DIM)) + 1.0), labels, unreadable)


def test_a_class_that_falls_under_the_floor_late_leaves_no_trace() -> None:
    site = late_site({21, 25})

    collected = site.under(NodePolicy(5))

    assert collected.suppressed == (1,)
    client, expected = collected.statistics, at_once(site, torch.arange(20))
    assert client.rows.class_ids.unique().tolist() == [0]
    assert relative_difference(client.summed().class_sums, expected.summed().class_sums) < 1e-15
    assert client.gram is not None and expected.gram is not None
    assert relative_difference(client.gram, expected.gram) < 1e-15
    assert site.passes == [list(range(26)), list(range(20))]


def test_a_mean_that_falls_under_the_floor_late_is_shared_out_anew() -> None:
    """Four means of five samples each, until four of the twenty samples cannot be read: then three means."""
    first = late_site(set()).under(NodePolicy(5)).statistics
    site = late_site({0, 1, 2, 3})

    again = site.under(NodePolicy(5)).statistics

    assert first.rows.counts.tolist() == [5, 5, 5, 5, 6] and len(site.passes) == 2
    assert again.rows.class_ids.tolist() == [0, 0, 0, 1] and again.rows.counts.tolist() == [5, 5, 6, 6]
    assert relative_difference(again.summed().class_sums[0], site.features[4:20].sum(dim=0)) < 1e-14


@pytest.mark.parametrize(
    ("policy", "expected"), [(NodePolicy(0), [2, 2, 2, 3]), (NodePolicy(3), [3, 3, 3]), (NodePolicy(5), [9])]
)
def test_there_are_as_many_means_as_the_floor_leaves_room_for(policy: NodePolicy, expected: list[int]) -> None:
    site = Site(torch.ones(9, DIM), torch.zeros(9, dtype=torch.int64), set())

    assert site.under(policy).statistics.rows.counts.tolist() == expected


def test_a_client_whose_classes_are_all_too_small_sends_nothing() -> None:
    site = late_site(set())

    collected = site.under(NodePolicy(21, min_gram_samples=1000))

    assert collected.suppressed == (0, 1)
    client = collected.statistics
    assert len(client.rows) == 0 and client.gram is not None and not client.gram.any()


@pytest.mark.parametrize("spec", [StatisticsSpec(gram=True), StatisticsSpec(scatter=ScatterSpec(RankRule("full")))])
def test_an_owner_is_warned_of_a_matrix_of_few_samples(spec: StatisticsSpec, caplog: pytest.LogCaptureFixture) -> None:
    """26 samples: fewer than 2 d for d = 14, not for d = 13."""

    def warned(policy: NodePolicy, dim: int) -> bool:
        caplog.clear()
        site = Site(torch.ones(26, dim, dtype=torch.float64), torch.zeros(26, dtype=torch.int64), set())
        statistics_above_floor(policy, spec, site.labels, site.blocks, num_classes=1, feature_dim=dim)
        return "26 samples in" in caplog.text

    assert warned(NodePolicy(5), 14) and not warned(NodePolicy(5), 13)
    assert not warned(NodePolicy(0), 14)  # a simulation has no owners


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
def test_rows_by_an_order_are_large_and_alike(values: list[int], means: int, least: int, seed: int) -> None:
    labels, draw = torch.tensor(values), torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=draw)
    class_ids, rows = rows_of_persons(labels, order, means, least)

    assert torch.equal(class_ids, class_ids.sort().values)
    for row, label in enumerate(class_ids.tolist()):
        assert labels[rows == row].unique().tolist() == [label]
        assert int((rows == row).sum()) >= min(least, int((labels == label).sum()))
    assert all(int((class_ids == label).sum()) <= means for label in values)
    mixed = torch.randperm(len(labels), generator=draw)
    assert torch.equal(rows_of_persons(labels[mixed], order[mixed], means, least)[1], rows[mixed])


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 20))
@example(5, 2, 2)  # of a row in the middle no sample can be read
def test_every_row_that_leaves_is_of_as_many_persons_as_the_floor(seed: int, floor: int, number: int) -> None:
    """Also where samples cannot be read; and a class that has enough readable persons does leave."""
    site = random_site(seed)
    persons = torch.from_numpy(np.random.default_rng(seed).integers(0, number, len(site.labels)))
    found = statistics_above_floor(
        NodePolicy(floor),
        SPEC,
        site.labels,
        site.blocks,
        num_classes=NUM_CLASSES,
        feature_dim=DIM,
        persons=persons,
    )
    rows = found.statistics.rows
    for row in range(len(rows)):
        assert len(set(persons[found.positions[found.rows == row]].tolist())) >= floor
    by_person = {tuple(pair) for pair in zip(persons[found.positions].tolist(), found.rows.tolist(), strict=True)}
    labels = {(person, int(rows.class_ids[row])) for person, row in by_person}
    assert len(labels) == len(by_person)  # a person's samples of a class are in one row
    readable = [n for n in range(len(site.labels)) if n not in site.unreadable]
    for label in range(NUM_CLASSES):
        there = {int(persons[n]) for n in readable if site.labels[n] == label}
        assert (label in rows.class_ids.tolist()) == (len(there) >= floor)
