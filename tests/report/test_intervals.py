"""Wilson's interval: scipy's numbers, what it covers, and what it refuses."""

import hypothesis.strategies as st
import pytest
from hypothesis import given
from scipy.stats import binom, binomtest

from fedstats_app.report.method_result import wilson_interval


@given(total=st.integers(1, 10**6), share=st.floats(0, 1), confidence=st.floats(0.01, 0.999))
def test_it_is_scipys(total: int, share: float, confidence: float) -> None:
    correct = round(share * total)
    theirs = binomtest(correct, total).proportion_ci(confidence, method="wilson")
    low, high = wilson_interval(correct, total, confidence)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert 0.0 <= low <= correct / total <= high <= 1.0


@pytest.mark.parametrize("true_share", [0.5, 0.85, 0.97])
def test_it_covers_the_true_share_as_often_as_it_says(true_share: float) -> None:
    total = 400
    covered = 0.0
    for correct in range(total + 1):
        low, high = wilson_interval(correct, total)
        covered += float(binom.pmf(correct, total, true_share)) * (low <= true_share <= high)
    assert covered == pytest.approx(0.95, abs=0.015)


def test_without_samples_every_share_is_possible() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("correct", "total", "confidence", "message"),
    [
        (-1, 3, 0.95, "0 <= correct <= total, got -1 and 3"),
        (4, 3, 0.95, "got 4 and 3"),
        (1, 3, 1.0, "between 0 and 1, got 1.0"),
        (1, 3, 0.0, "between 0 and 1, got 0.0"),
    ],
)
def test_what_cannot_be_is_refused(correct: int, total: int, confidence: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wilson_interval(correct, total, confidence)
