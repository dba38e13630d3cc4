"""Sums by target add up, whatever the order and the split, and an unknown target adds nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.statistics import TargetSums

NAN = float("nan")


def drawn(seed: int, n: int, *, unknown: float = 0.2, targets: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 5, generator=draw, dtype=torch.float64)
    values = (torch.rand(n, targets, generator=draw, dtype=torch.float64) < 0.4).to(torch.float64)
    values[torch.rand(n, targets, generator=draw) < unknown] = NAN
    return features, values


def sums(features: torch.Tensor, targets: torch.Tensor) -> TargetSums:
    total = TargetSums.zeros("labels", targets.shape[1], features.shape[1])
    total.add_(features, targets)
    return total


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(0, 40), st.data())
def test_any_order_and_split_give_the_same_sums(seed: int, n: int, data: st.DataObject) -> None:
    features, targets = drawn(seed, n)
    order = torch.tensor(data.draw(st.permutations(range(n))), dtype=torch.int64)
    cut = data.draw(st.integers(0, n))
    parts = sums(features[order[:cut]], targets[order[:cut]]) + sums(features[order[cut:]], targets[order[cut:]])
    for name, tensor in sums(features, targets).tensors.items():
        torch.testing.assert_close(parts.tensors[name], tensor)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.integers(2, 40))
def test_an_unknown_target_counts_as_the_mean_of_the_known(seed: int, n: int) -> None:
    features, targets = drawn(seed, n)
    found = sums(features, targets)
    filled = torch.where(targets.isnan(), found.means, targets)
    expected = (filled - found.means).T @ (features - features.mean(dim=0))
    torch.testing.assert_close(found.centred, expected)
    torch.testing.assert_close(found.energies, (filled - found.means).square().sum(dim=0), atol=1e-9, rtol=1e-9)


def test_a_target_of_one_value_and_none_at_all_are_not_usable() -> None:
    features, targets = drawn(0, 10, unknown=0.0, targets=4)
    targets[:, 0], targets[:, 1], targets[:, 2] = 1.0, 0.0, NAN
    assert sums(features, targets).usable.tolist() == [False, False, False, True]


def test_sums_of_other_kinds_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="must have the same kind"):
        TargetSums.zeros("labels", 2, 3) + TargetSums.zeros("numbers", 2, 3)
