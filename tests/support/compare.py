"""Comparisons that say how far off a result is, relative to what it should be relative to."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor


def array(values: ArrayLike | Tensor) -> np.ndarray:
    """Return a tensor or array as a float64 array."""
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)


def relative_difference(actual: ArrayLike | Tensor, expected: ArrayLike | Tensor, *, scale: float = 0.0) -> float:
    """Return the largest difference over the largest expected entry, or over ``scale`` where sums cancel."""
    actual, expected = array(actual), array(expected)
    assert actual.shape == expected.shape, f"shapes {actual.shape} and {expected.shape}"
    if actual.size == 0:
        return 0.0
    assert np.isfinite(actual).all()
    return float(np.abs(actual - expected).max() / max(np.abs(expected).max(), scale, 1e-300))


def absolute_difference(actual: ArrayLike | Tensor, expected: ArrayLike | Tensor) -> float:
    """Return the largest difference; infinities must be in the same places."""
    actual, expected = array(actual), array(expected)
    assert actual.shape == expected.shape, f"shapes {actual.shape} and {expected.shape}"
    assert np.array_equal(np.isinf(actual), np.isinf(expected)) and not np.isnan(actual).any()
    finite = np.isfinite(expected)
    return float(np.abs(actual[finite] - expected[finite]).max(initial=0.0))


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every value."""
    return first.dtype == second.dtype and torch.equal(first, second)
