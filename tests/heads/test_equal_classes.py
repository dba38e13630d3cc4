"""Statistics as if classes had equal numbers of samples: against copies of samples, and in the methods."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads.scatter import class_mean_products, with_equal_classes
from fedstats_app.methods import Fed3RMethod, FedCGSMethod, FedRootMethod, Method
from fedstats_app.statistics import FeatureStatistics


def _statistics(labels: Tensor, seed: int = 0, num_classes: int = 4) -> FeatureStatistics:
    features = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1.0
    return FeatureStatistics.from_features(features, labels, num_classes)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 99))
def test_means_and_scatter_stay_counts_become_equal_and_twice_is_once(labels: list[int], seed: int) -> None:
    before = _statistics(torch.tensor(labels), seed)
    after = with_equal_classes(before)
    assert before.gram is not None and after.gram is not None
    assert set(after.class_counts[before.present].tolist()) == {round(len(labels) / len(set(labels)))}
    assert torch.equal(after.present, before.present)
    torch.testing.assert_close(after.class_means, before.class_means)
    one, other = (statistics.gram - class_mean_products(statistics) for statistics in (after, before))
    torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(with_equal_classes(after).gram, after.gram)


@pytest.mark.parametrize("method", [Fed3RMethod, FedCGSMethod, FedRootMethod], ids=lambda method: method.name)
def test_equal_classes_change_nothing_and_a_rare_class_gains(method: type[Method[Any]]) -> None:
    plain, balanced = method.default(), method(method.options_type(class_balance=True))  # type: ignore[call-arg]
    equal = _statistics(torch.arange(40) % 4)
    torch.testing.assert_close(plain.solve(equal).weight, balanced.solve(equal).weight)
    generator = torch.Generator().manual_seed(1)
    centres = 1.0 + 0.5 * torch.randn(2, 5, generator=generator, dtype=torch.float64)

    def draw(labels: Tensor) -> Tensor:
        return centres[labels] + torch.randn(len(labels), 5, generator=generator, dtype=torch.float64)

    tail = (torch.arange(1020) >= 1000).long()
    statistics = FeatureStatistics.from_features(draw(tail), tail, 2)
    rare = torch.ones(500, dtype=torch.int64)
    new = draw(rare)
    recalls = [float((one.solve(statistics).predict(new) == rare).double().mean()) for one in (plain, balanced)]
    assert recalls[1] > recalls[0]
