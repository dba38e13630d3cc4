"""Choosing the ridge from the statistics alone.

If the Gram matrix is known, or completed, the ridge is the likeliest one (:func:`likeliest_ridge`).
FedCOF knows only how means scatter, and takes the ridge with the best expected accuracy (:func:`choose_ridge`). Its
head is linear in H mu_c with H = (S + lambda I)^-1, S a scatter within classes and mu_c the class means. If
features scatter about their class means with a common covariance, the scores of a new sample are normal, and their
expectation follows from S and the means. But S and H come from the same draws, so directions in which the draws happen
to vary little look better than they are. This is corrected as usual for regularised discriminants (Raudys and Young
2004; Zollanvari and Dougherty 2015, "Generalized consistent error estimator of linear discriminant analysis"): with q
draws and h = tr(S H), a trace under H is multiplied by 1 / (1 - h / q), a variance by its square. It is the factor of
generalised cross-validation, applied to classification errors. No message, test sample or fitted constant is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.evidence import evidence_by_ridge
from fedstats_app.heads.scatter import needed_gram, within_class_freedom
from fedstats_app.statistics import FeatureStatistics

# Candidates in units of the mean eigenvalue of the scatter. Beyond either end no head changed on any data we tried.
LOWEST, HIGHEST, PER_DECADE, DECADES = 1e-4, 1e6, 4, 10
# A candidate is not trusted where directions take more than this share of the draws: the correction blows up there.
MOST_FREEDOM = 0.6
# More classes than this would take longer than the solve itself; a fixed selection gives the same ridge or a neighbour.
MOST_CLASSES = 256

# A ridge chosen by evidence is at least this many times the mean squared distance of a sample from its class mean. No
# statistic tells copies of samples from new samples, and with copies the evidence grows as the ridge falls; on large
# data half a sample is next to nothing. On few samples the evidence is flat: the logarithm of the ridge has, for each
# class, a normal prior about this value, of this deviation.
LEAST_RESIDUALS, PRIOR_DEVIATION = 0.5, 0.5

# From P = M^T H M and R = M^T H^2 M, (C, C) for class means M (d, C), and the counts (C,) to the head, as the (C, C)
# matrix T of W^T = H M T and the bias (C,).
HeadMap = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Spread:
    """Class means and the scatter about them, in the scatter's eigenbasis.

    Attributes
    ----------
    eigenvalues : Tensor
        (d,) float64, of the scatter, at least 0.
    means : Tensor
        (d, C) float64, of the classes that are present.
    counts : Tensor
        (C,) float64, samples of each, above 0.
    weight : float
        The scatter divided by this estimates the covariance.
    freedom : int
        Independent draws behind that estimate.
    """

    eigenvalues: Tensor
    means: Tensor
    counts: Tensor
    weight: float
    freedom: int

    @classmethod
    def of(cls, scatter: Tensor, means: Tensor, counts: Tensor, weight: float, freedom: int) -> Spread | None:
        """Decompose a scatter.

        Parameters
        ----------
        scatter : Tensor
            (d, d) float64.
        means, counts : Tensor
            (C, d) and (C,) float64; absent classes are left out.
        weight, freedom
            See above.

        Returns
        -------
        Spread or None
            None if nothing is known of the covariance: no draws, or none that differ.
        """
        present = (counts > 0).nonzero().squeeze(1)
        # The diagonal of a difference of large sums is never exactly zero.
        energy = float(((means[present] ** 2).sum(dim=1) * counts[present]).sum())
        if freedom < 1 or float(scatter.trace()) <= 1e-12 * energy:
            return None
        if len(present) > MOST_CLASSES:
            drawn = torch.randperm(len(present), generator=torch.Generator().manual_seed(0))[:MOST_CLASSES]
            present = present[drawn.sort().values.to(present.device)]
        eigenvalues, vectors = torch.linalg.eigh(scatter)
        return cls(eigenvalues.clamp(min=0.0), vectors.T @ means[present].T, counts[present], weight, freedom)

    @property
    def residual(self) -> float:
        """Mean squared distance of a draw from its class mean."""
        return float(self.eigenvalues.sum()) / self.weight

    def directions(self, ridge: float) -> float:
        """Return h = tr(S H), the number of directions that the inverse uses.

        The common part of all eigenvalues acts like a ridge: it is energy that FedRoot spread evenly, without knowing
        its directions. It is counted as if it lay along the known directions.
        """
        known = self.eigenvalues - self.eigenvalues.amin()
        if not float(known.sum()):
            known = self.eigenvalues
        known = known * (self.eigenvalues.sum() / known.sum())
        return float((known / (self.eigenvalues + ridge)).sum())

    def expected_accuracy(self, ridge: float, head: HeadMap) -> float:
        """Return the expected accuracy of a head at a ridge, 0 to 1; classes weigh by the root of their counts.

        The probability that a sample's own score beats all others is approximated by the product over the others, which
        keeps the order of candidates. The weights lie between the share of the samples and equal weights.

        Parameters
        ----------
        ridge : float
            lambda above 0, added to the scatter; infinity stands for H = I.
        head : callable
            See ``HeadMap``.
        """
        if math.isinf(ridge):
            shrunk, inverse, correction = self.means, torch.ones_like(self.eigenvalues), 1.0
        else:
            inverse = 1.0 / (self.eigenvalues + ridge)
            shrunk = self.means * inverse.unsqueeze(1)
            correction = 1.0 / max(1.0 - self.directions(ridge) / self.freedom, 1e-9)
        covariance = self.eigenvalues / self.weight
        products = self.means.T @ shrunk
        transform, bias = head(products, shrunk.T @ shrunk, self.counts)
        # A class mean lies nearer to its own samples than to new ones.
        optimism = float((covariance * inverse).sum()) * correction / self.counts
        scores = (products - torch.diag(optimism)) @ transform + bias  # (true class, class)
        noise = transform.T @ ((shrunk * covariance.unsqueeze(1)).T @ shrunk) @ transform * correction**2
        variances = noise.diagonal().unsqueeze(0) + noise.diagonal().unsqueeze(1) - 2.0 * noise
        lead = scores.diagonal().unsqueeze(1) - scores
        chances = torch.special.log_ndtr(lead / variances.clamp(min=1e-300).sqrt())
        chances.fill_diagonal_(0.0)
        weights = self.counts.sqrt()
        return float((chances.sum(dim=1).exp() * weights).sum() / weights.sum())


def likeliest_ridge(stats: FeatureStatistics) -> float | None:
    """Return the likeliest ridge: by the evidence of ridge regression on one-hot labels, and a prior.

    The evidence is that of :func:`fedstats_app.heads.evidence.evidence_by_ridge`. log lambda is normal about the least
    candidate, which matters on few samples alone. FedCGS takes the same ridge for its scatter within classes: both
    heads consist of the directions (S + lambda I)^-1 mu_c. Candidates grow by the fourth root of 10 over ten decades.

    Parameters
    ----------
    stats : FeatureStatistics
        Merged statistics: class sums B, counts n and Gram matrix G.

    Returns
    -------
    float or None
        lambda, in squared units of the features, at least ``LEAST_RESIDUALS`` of a sample's mean squared distance from
        its class mean. None if no two samples of a class differ.
    """
    freedom = within_class_freedom(stats)
    between = float((stats.class_sums * stats.class_means).sum())
    within = float(needed_gram(stats, "ridge").trace()) - between
    # A difference of large sums is never exactly zero.
    if freedom < 1 or within <= 1e-12 * between:
        return None
    evidence = evidence_by_ridge(stats)
    steps = torch.arange(DECADES * PER_DECADE + 1, dtype=torch.float64) / PER_DECADE
    ridges: list[float] = (LEAST_RESIDUALS * within / freedom * 10.0**steps).tolist()

    def likelihood(ridge: float) -> float:
        return 2 * stats.num_examples * evidence(ridge) - (math.log(ridge / ridges[0]) / PRIOR_DEVIATION) ** 2

    return max(ridges, key=likelihood)


def check_regulariser(name: str, value: float | str, *, infinite: bool = False) -> None:
    """Raise a ValueError unless the value is "auto" or a number >= 0, infinity only if allowed."""
    if value != "auto" and (isinstance(value, str) or not 0.0 <= value or (math.isinf(value) and not infinite)):
        kind = "a number" if infinite else "a finite number"
        raise ValueError(f'{name} must be {kind} >= 0 or "auto", got {value!r}')


def choose_ridge(spread: Spread, head: HeadMap) -> float:
    """Return the candidate with the best expected accuracy; the middle one of equally good ones.

    Parameters
    ----------
    spread : Spread
        Of the merged statistics.
    head : callable
        See ``HeadMap``.
    """
    mean_eigenvalue = float(spread.eigenvalues.mean())
    steps = round(PER_DECADE * math.log10(HIGHEST / LOWEST)) + 1
    grid = (
        mean_eigenvalue * torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), steps, dtype=torch.float64)
    ).tolist()
    # With a single draw, even the largest candidate may use too many directions.
    candidates = [ridge for ridge in grid if spread.directions(ridge) <= MOST_FREEDOM * spread.freedom] or [grid[-1]]
    expected = [spread.expected_accuracy(ridge, head) for ridge in candidates]
    best: list[float] = [
        ridge for ridge, value in zip(candidates, expected, strict=True) if value >= max(expected) - 1e-9
    ]
    return best[len(best) // 2]


def with_between_class(products: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit rows of (S + M D M^T + lambda I)^-1 M D, D the counts: ridge regression."""
    return _unit_rows(torch.linalg.inv(torch.diag(1.0 / counts) + products), squares)


def without_between_class(products: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit rows of (S + N mu mu^T + lambda I)^-1 M D, mu the mean of all samples: FedCOF."""
    total = counts.sum()
    share = counts / total
    along = products @ share
    return _unit_rows(
        torch.eye(len(counts), dtype=products.dtype, device=products.device)
        - torch.outer(total * share / (1.0 + total * (along @ share)), along),
        squares,
    )


def class_means(products: Tensor, squares: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit rows of the class means, where H = I: FedNCM."""
    return _unit_rows(torch.eye(len(counts), dtype=products.dtype, device=products.device), squares)


def _unit_rows(transform: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
    """Divide column c of T by the norm of row c of the head, and return it with a zero bias."""
    norms = (transform * (squares @ transform)).sum(dim=0).clamp(min=1e-300).sqrt()
    return transform / norms, torch.zeros_like(norms)
