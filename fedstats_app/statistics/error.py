"""How far statistics that were added up lie from those of all samples in one place."""

from __future__ import annotations

from torch import Tensor

from fedstats_app.statistics.feature_statistics import FeatureStatistics


def statistics_error(found: FeatureStatistics, true: FeatureStatistics) -> dict[str, dict[str, float]]:
    """Return the errors of the class means and, where both have a Gram matrix, of the covariance (Guan et al. 2025).

    The covariance is that of all samples about the mean of all, (G - N mu mu^T) / (N - 1).

    Parameters
    ----------
    found, true : FeatureStatistics
        Of the same classes and features.

    Returns
    -------
    dict
        By quantity, "class_means" and "covariance": "largest", the largest absolute difference of an entry, and
        "relative", the Frobenius norm of the difference over that of the true one (of zeros, the difference's own).

    Raises
    ------
    ValueError
        If their shapes differ.
    """
    if found.class_sums.shape != true.class_sums.shape:
        raise ValueError(
            "statistics to compare must have the same (classes, feature dimension), "
            f"got {tuple(found.class_sums.shape)} and {tuple(true.class_sums.shape)}"
        )
    errors = {"class_means": _error(found.class_means, true.class_means)}
    if found.gram is not None and true.gram is not None:
        errors["covariance"] = _error(_covariance(found, found.gram), _covariance(true, true.gram))
    return errors


def _covariance(statistics: FeatureStatistics, gram: Tensor) -> Tensor:
    number, total = statistics.num_examples, statistics.class_sums.sum(dim=0)
    return (gram - total.unsqueeze(1) * total / max(number, 1)) / max(number - 1, 1)


def _error(found: Tensor, true: Tensor) -> dict[str, float]:
    difference = found - true
    return {
        "largest": float(difference.abs().max()) if difference.numel() else 0.0,
        "relative": float(difference.norm()) / (float(true.norm()) or 1.0),
    }
