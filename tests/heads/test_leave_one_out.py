"""Leave-one-out scores are those of the heads that are solved without each sample."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.heads import solve_ridge
from fedstats_app.heads.leave_one_out import LeaveOneOut
from fedstats_app.statistics import FeatureStatistics


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(5, 25), st.floats(-3, 2))
def test_they_are_those_of_heads_solved_without_each_sample(seed: int, n: int, exponent: float) -> None:
    draw, classes, ridge = torch.Generator().manual_seed(seed), 4, 10.0**exponent
    features = torch.randn(n, 6, generator=draw, dtype=torch.float64) + 2.0  # a common mean
    labels = torch.cat([torch.tensor([0, 0, 1, 1]), torch.randint(0, 3, (n - 4,), generator=draw)])  # 3 is absent
    stats = FeatureStatistics.from_features(features, labels, classes, gram=True)
    head = solve_ridge(stats, ridge_lambda=ridge)

    found = LeaveOneOut.of(stats, ridge).logits(head, features, labels)

    for i in range(n):
        others = torch.arange(n) != i
        without = FeatureStatistics.from_features(features[others], labels[others], classes, gram=True)
        expected = solve_ridge(without, ridge_lambda=ridge).logits(features[i : i + 1])[0]
        torch.testing.assert_close(found[i], expected, rtol=1e-6, atol=1e-6)


def test_a_ridge_needs_a_gram_matrix() -> None:
    with pytest.raises(ValueError, match="leave-one-out head needs statistics with a Gram matrix"):
        LeaveOneOut.of(FeatureStatistics.zeros(3, 4, gram=False), 1.0)
