"""Statistics as words that wrap around: sums to the last bit, the scatter within its steps, ranges at their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.secure_words import Known, SecureLayout, check_range, check_sum


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


def test_a_sum_out_of_its_range_is_no_sum_of_statistics() -> None:
    layout = SecureLayout.of(3, 4, "none", 5, 4000, 4.0)
    allowed = torch.ones(3, dtype=torch.bool)
    words = layout.sums(statistics(30, 0, layout.bits), allowed)
    words[0][1] = np.uint64(2**64 - 3)
    with pytest.raises(ValueError, match="out of its range: a class has fewer than 0 samples"):
        check_sum(layout.read_sums(words, allowed), 4000, 4.0)
