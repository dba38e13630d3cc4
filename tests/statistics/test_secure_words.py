"""Statistics as words that wrap around: sums to the last bit, ranges at their bounds, FedCOF from one sum."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.heads.scatter import SummedRows
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics, StatisticsSpec, TargetSums
from fedstats_app.statistics.exact import on_grid
from fedstats_app.statistics.secure_words import SecureLayout, Words, fedcof_scatter, mean_weights, packed, unpacked

EVERY, EVEN = torch.ones(3, dtype=torch.bool), torch.full((3,), 1 / 19, dtype=torch.float64)


def drawn(number: int, seed: int) -> torch.Tensor:
    return torch.rand(number, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.3


def statistics(features: torch.Tensor, bits: int) -> FeatureStatistics:
    return FeatureStatistics.from_features(on_grid(features, bits), torch.arange(len(features)) % 3, 3)


def travelled(layout: SecureLayout, words: list[Words], classes: int = 3) -> Words:
    """The sum of words that went over the wire."""
    shapes = layout.shapes(classes)
    arrived = [unpacked(packed(own, shapes)) for own in words]
    return [np.sum(parts, axis=0, dtype=np.uint64) for parts in zip(*arrived, strict=True)]


def test_sums_of_words_are_sums_of_statistics_to_the_last_bit() -> None:
    layout = SecureLayout(4, 4000, 4.0, gram=True)
    parts = [statistics(drawn(1 + 7 * one, one), layout.bits) for one in range(20)]
    plain = parts[0]
    for one in parts[1:]:
        plain = plain + one
    total, products = layout.read(travelled(layout, [layout.words(one, EVERY, EVEN) for one in parts]), EVERY)
    assert products is None and plain.gram is not None and total.gram is not None
    assert torch.equal(total.class_sums, plain.class_sums) and torch.equal(total.class_counts, plain.class_counts)
    assert torch.equal(total.gram, plain.gram)


@given(st.integers(1, 4000), st.sampled_from([0.5, 1.0, 8.0, 37.9]), st.booleans())
def test_as_many_samples_as_declared_at_the_bound_do_not_overflow(samples: int, norm: float, spread: bool) -> None:
    """All of one client, all at the largest length, in one direction: every word is at its end."""
    layout = SecureLayout(2, samples, norm, gram=True, spread=spread)
    features = on_grid(torch.tensor([[-norm, 0.0]], dtype=torch.float64), layout.bits)
    one = FeatureStatistics.from_features(features.repeat(samples, 1), torch.zeros(samples, dtype=torch.int64), 1)
    only, whole = torch.ones(1, dtype=torch.bool), torch.ones(1, dtype=torch.float64)
    total, products = layout.read(travelled(layout, [layout.words(one, only, whole)], 1), only)
    assert torch.equal(total.class_sums, one.class_sums)
    assert total.gram is not None and one.gram is not None and torch.equal(total.gram, one.gram)
    if products is not None:
        assert torch.allclose(products, one.gram, rtol=1e-12, atol=2.0 ** -(2 * layout.bits))


def test_more_samples_than_declared_are_seen_in_the_sum_and_by_nobody_before() -> None:
    """A client answers whatever it has: a refusal would tell the server how many samples that is."""
    layout = SecureLayout(4, 40, 1.5)
    words = layout.words(statistics(drawn(21, 0), layout.bits), EVERY, EVEN)
    assert layout.read(travelled(layout, [words]), EVERY)[0].num_examples == 21
    with pytest.raises(ValueError, match=r"room for 40 samples \(max-client-samples of each client\), got 42"):
        layout.read(travelled(layout, [words, words]), EVERY)
    with pytest.raises(ValueError, match="got 42000000"):
        layout.read([array * np.uint64(2_000_000) for array in words], EVERY)


@pytest.mark.parametrize(
    ("array", "change", "reason"),
    [
        (0, -1000, "got a class with fewer than 0"),
        (1, 2**30, "features are up to 4 long, got longer ones"),
        (2, -(2**40), "squares of features are below 0"),
        (2, 2**45, "squares of features are below 0, or too large"),
    ],
)
def test_a_sum_out_of_its_range_is_no_sum_of_statistics(array: int, change: int, reason: str) -> None:
    layout = SecureLayout(4, 4000, 4.0, gram=True)
    words = layout.words(statistics(drawn(30, 0), layout.bits), EVERY, EVEN)
    words[array][0] += np.int64(change).astype(np.uint64)
    with pytest.raises(ValueError, match=reason):
        layout.read(travelled(layout, [words]), EVERY)


def fedcof(parts: list[torch.Tensor], left: int, labels: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The scatter from one sum over the first clients of those that were asked, and that of the paper's two phases."""
    layout = SecureLayout(4, 4000, 4.0, spread=True)
    every = [FeatureStatistics.from_features(one, own, 3, gram=False) for one, own in zip(parts, labels, strict=True)]
    asked, kept = (sum(one.present.long() for one in some) for some in (every, every[:left]))
    assert isinstance(asked, torch.Tensor) and isinstance(kept, torch.Tensor)
    weights = mean_weights(asked, EVERY)
    total, products = layout.read(travelled(layout, [layout.words(one, EVERY, weights) for one in every[:left]]), EVERY)
    assert products is not None
    pairs = zip(parts[:left], labels[:left], strict=True)
    rows = [StatisticsSpec().from_features(one, own, 3).rows for one, own in pairs]
    paper = SummedRows.of(ClassMeanRows.concatenate(rows)).scatter
    return fedcof_scatter(products, total, weights, kept), paper


def test_fedcof_from_one_sum_is_that_of_the_paper_s_two_phases() -> None:
    """Classes of one size on clients of any, of which not all have every class."""
    sizes = [3, 5, 8, 4, 12]
    labels = [torch.arange(3).repeat(number) for number in sizes]
    labels[0], labels[1] = torch.zeros(9, dtype=torch.int64), torch.arange(1, 3).repeat(8)
    labels[1] = torch.cat([labels[1][:11], torch.tensor([1, 2])])
    counts = torch.stack([torch.bincount(own, minlength=3) for own in labels]).sum(dim=0)
    labels[4] = torch.cat([labels[4], *(torch.full((int(counts.max() - n),), c) for c, n in enumerate(counts))])
    found, paper = fedcof([on_grid(drawn(len(own), seed), 12) for seed, own in enumerate(labels)], 5, labels)
    assert torch.allclose(found, paper, rtol=0, atol=1e-4 * float(paper.diagonal().max()))


def test_fedcof_allows_for_clients_that_were_lost() -> None:
    """A class's products are weighted by all that were asked: of three of five, half are left."""
    labels = [torch.arange(3).repeat(8) for _ in range(5)]
    found, paper = fedcof([on_grid(drawn(24, seed), 12) for seed in range(5)], 3, labels)
    assert torch.allclose(found, paper, rtol=0, atol=1e-4 * float(paper.diagonal().max()))


def test_a_site_with_1_280_features_sends_four_to_seven_megabytes() -> None:
    for samples, norm in ((8_000, 1.0), (8_000, 30.0), (3_000_000, 1.0), (100_000_000, 1.0)):
        layout = SecureLayout(1280, samples, norm, gram=True)
        assert 4e6 < sum(number * size for number, size in layout.shapes(100)) < 7e6


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.integers(2, 4))
def test_labels_are_read_as_they_were_summed(seed: int, clients: int) -> None:
    layout, draw = SecureLayout(4, 100, 1.0, gram=True, labels=True), torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(clients):
        features = on_grid(torch.nn.functional.normalize(torch.randn(20, 4, generator=draw)), layout.bits)
        values = (torch.rand(20, 3, generator=draw) < 0.4).to(torch.float64)
        values[torch.rand(20, 3, generator=draw) < 0.2] = torch.nan
        values = torch.cat([torch.ones(20, 1, dtype=torch.float64), values], dim=1)
        targets = TargetSums.zeros("labels", 4, 4)
        targets.add_(features, values)
        of_one = FeatureStatistics.from_features(features, torch.zeros(20, dtype=torch.int64), 4)
        parts.append(replace(of_one, targets=targets))
    classes = torch.tensor([True, True, False, True])
    words = [layout.words(part, classes, torch.zeros(4)) for part in parts]
    found, _ = layout.read(travelled(layout, words, 3), classes)
    total = sum(parts[1:], parts[0])
    assert found.targets is not None and total.targets is not None and found.gram is not None
    assert torch.equal(found.gram, total.gram) and found.num_examples == 20 * clients
    for name, tensor in found.targets.tensors.items():
        expected = total.targets.tensors[name][1:].clone()
        expected[1] = 0  # it is not summed
        assert torch.equal(tensor, expected), name
