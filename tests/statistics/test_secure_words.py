"""Statistics as words that wrap around: sums to the last bit, the scatter within its steps, ranges at their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedstats_app.heads.ridge import solve_ridge
from fedstats_app.heads.scatter import SummedRows
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics, StatisticsSpec
from fedstats_app.statistics.secure_words import (
    Known,
    SecureLayout,
    _about,
    approximated,
    approximated_by,
    check_range,
    check_sum,
    further_directions,
)


def statistics(number: int, seed: int, bits: int, shift: float = 0.0) -> FeatureStatistics:
    draw = torch.Generator().manual_seed(seed)
    features = (torch.rand(number, 4, generator=draw, dtype=torch.float64) + shift).mul(2**bits).round() / 2**bits
    return FeatureStatistics.from_features(features, torch.arange(number) % 3, 3)


def total(layout: SecureLayout, words: list[Any]) -> Any:
    return [np.sum(parts, axis=0, dtype=parts[0].dtype) for parts in zip(*words, strict=True)]


def test_sums_of_words_are_sums_of_statistics_and_the_scatter_within_its_steps() -> None:
    layout = SecureLayout.of(3, 4, "triangle", 20, 4000, 4.0)
    parts = [statistics(1 + 7 * one, one, layout.bits, shift=-0.3) for one in range(20)]
    plain, allowed = parts[0], torch.ones(3, dtype=torch.bool)
    for one in parts[1:]:
        plain = plain + one
    summed = layout.read_sums(total(layout, [layout.sums(one, allowed) for one in parts]), allowed)
    assert plain.gram is not None and summed.gram is not None
    assert torch.equal(summed.class_sums, plain.class_sums) and torch.equal(summed.class_counts, plain.class_counts)
    assert torch.equal(summed.gram.diagonal(), plain.gram.diagonal())

    known = Known.of(summed)
    whole = layout.read_scatter(total(layout, [layout.scatter(one, known) for one in parts]), summed, known)
    assert whole.gram is not None
    steps = torch.outer(known.scales, known.scales) * 2.0**-14
    assert bool(((whole.gram - plain.gram).abs() <= steps * 11).all())  # half a step of each of 20
    assert not torch.equal(whole.gram, plain.gram)


def test_two_products_of_the_scatter_of_rank_four_give_it_and_one_has_its_diagonal() -> None:
    layout = SecureLayout.of(3, 4, "means-2", 20, 4000, 4.0)
    assert layout.kinds == ("presence", "sums", "product1", "product2")
    parts = [statistics(1 + 7 * one, one, layout.bits, shift=-0.3) for one in range(20)]
    plain, allowed = parts[0], torch.ones(3, dtype=torch.bool)
    for one in parts[1:]:
        plain = plain + one
    assert plain.gram is not None
    summed = layout.read_sums(total(layout, [layout.sums(one, allowed) for one in parts]), allowed)
    known = Known.of(summed)
    directions = torch.linalg.qr(known.means.T)[0].to(torch.float32).to(torch.float64)
    products = torch.zeros(4, 0, dtype=torch.float64)
    for number in (1, 2):
        asked = directions[:, -3:]
        words = [layout.product(one, known, asked) for one in parts]
        assert [len(one[0]) for one in words] == [layout.words("product1", 3)[0][0]] * 20
        product = layout.read_product(total(layout, words), known, asked)
        steps = torch.outer(known.scales, known.scales @ asked.abs()) / 2**30
        assert bool(((product - _about(plain, known.means) @ asked).abs() <= steps * 10.01).all())  # half of each of 20
        products = torch.cat([products, product], 1)
        found = approximated(summed, known, directions, products).gram
        assert found is not None and torch.allclose(found.diagonal(), plain.gram.diagonal(), rtol=1e-7)
        assert torch.allclose(found, plain.gram, rtol=0, atol=1e-5) == (number == 2)
        directions = torch.cat([directions, further_directions(directions, product).to(torch.float64)], 1)


def test_the_spread_of_clients_means_is_that_of_their_rows() -> None:
    layout = SecureLayout.of(3, 4, "none", 20, 4000, 4.0)
    draw = torch.Generator().manual_seed(0)
    features = [torch.rand(3 + one, 4, generator=draw, dtype=torch.float64) for one in range(20)]
    rows = ClassMeanRows.concatenate(
        [StatisticsSpec().from_features(one, torch.arange(len(one)) % 3, 3).rows for one in features]
    )
    totals, spread = SummedRows.of(rows)
    means, steps = totals.means.to(torch.float32).to(torch.float64), 2.0**40
    parts = [FeatureStatistics.from_features(one, torch.arange(len(one)) % 3, 3, gram=False) for one in features]
    words = [layout.means_spread(one, means, totals.fedcof_weights * steps) for one in parts]
    assert torch.allclose(layout.read_spread(total(layout, words), steps), spread, rtol=1e-9, atol=20 / steps)


def test_1_000_clients_at_the_bound_do_not_overflow_and_one_sample_more_is_refused() -> None:
    norm, samples = 8.0, 1000 * 50
    layout = SecureLayout.of(1, 2, "exact", 1000, samples, norm)
    assert layout.narrow
    features = torch.tensor([[-norm, 0.0]], dtype=torch.float64).repeat(50, 1)
    one = FeatureStatistics.from_features(features, torch.zeros(50, dtype=torch.int64), 1)
    check_range(one, 50, norm)
    allowed = torch.ones(1, dtype=torch.bool)
    words = layout.sums(one, allowed)
    summed = layout.read_sums([array * array.dtype.type(1000) for array in words], allowed)
    check_sum(summed, samples, norm)
    assert summed.class_sums.tolist() == [[-norm * samples, 0.0]]
    assert summed.gram is not None and summed.gram.tolist() == [[norm**2 * samples, 0.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match="room for 49 samples of a client"):
        check_range(one, 49, norm)
    with pytest.raises(ValueError, match=r"room for features up to 7\.9 long"):
        check_range(one, 50, 7.9)


def test_the_scatter_of_1_000_clients_at_the_top_of_16_bits_does_not_overflow() -> None:
    """All samples lie on one line: every entry is at its bound, and each of the clients rounds it up."""
    layout = SecureLayout.of(1, 2, "triangle", 1000, 1000 * 4, 8.0)
    features = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [3.0, 3.0], [-3.0, -3.0]], dtype=torch.float64)
    one = FeatureStatistics.from_features(features, torch.zeros(4, dtype=torch.int64), 1)
    allowed = torch.ones(1, dtype=torch.bool)
    summed = layout.read_sums([array * array.dtype.type(1000) for array in layout.sums(one, allowed)], allowed)
    known = Known.of(summed)
    (words,) = layout.scatter(one, known)
    assert words.dtype == np.uint16 and int(words[0]) == 16  # of 2^14 / 1000
    whole = layout.read_scatter([words * np.uint16(1000)], summed, known)
    assert whole.gram is not None
    # Half a step of each of 1,000 clients, of 2^14.
    assert abs(float(whole.gram[0, 1]) / 20_000 - 1.0) < 500 / 2**14


def test_a_sum_out_of_its_range_is_no_sum_of_statistics() -> None:
    layout = SecureLayout.of(3, 4, "none", 5, 4000, 4.0)
    allowed = torch.ones(3, dtype=torch.bool)
    words = layout.sums(statistics(30, 0, layout.bits), allowed)
    words[0][1] = np.uint64(2**64 - 3)
    with pytest.raises(ValueError, match="out of its range: a class has fewer than 0 samples"):
        check_sum(layout.read_sums(words, allowed), 4000, 4.0)


def test_products_go_where_heads_are_solved_from_means() -> None:
    """Features of which some vary much and some hardly: with the plain means as directions the head is further off."""
    draw = torch.Generator().manual_seed(0)
    sizes, labels = torch.logspace(-1, 1, 40, dtype=torch.float64), torch.arange(2000) % 4
    mixed = torch.linalg.qr(torch.randn(40, 40, generator=draw, dtype=torch.float64))[0] * 0.3 + torch.eye(40)
    noise = torch.randn(2000, 40, generator=draw, dtype=torch.float64) @ mixed * sizes
    means = torch.randn(4, 40, generator=draw, dtype=torch.float64) * sizes
    exact = FeatureStatistics.from_features(noise + means[labels], labels, 4)
    known = Known.of(exact)
    scatter, wanted = _about(exact, known.means), solve_ridge(exact, ridge_lambda=100.0).weight
    plain = torch.linalg.qr(known.means.T)[0]
    by_means = approximated(exact, known, plain, scatter @ plain)
    found = approximated_by(exact, known, ("product1",), lambda _, asked: scatter @ asked)
    off, off_by_means = (
        float((solve_ridge(one, ridge_lambda=100.0).weight - wanted).norm()) for one in (found, by_means)
    )
    assert off < 0.9 * off_by_means
