"""Heads of samples whose targets are a matrix: several labels, or numbers; linear in the features, with a bias.

A sample has a label if its score is at least 0. All heads rest on the scatter S of the features about the mean mu of
all samples, and on B = sum (y - mean y) x of each target (:class:`fedstats_app.statistics.TargetSums`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import LinearHead, SolveReport, add_to_diagonal, solve_positive_definite
from fedstats_app.heads.regularisation import LEAST_RESIDUALS
from fedstats_app.heads.scatter import mean_product, needed_gram
from fedstats_app.statistics import FeatureStatistics, TargetSums
from fedstats_app.statistics.accumulation import check_tensor

# Candidate ridges of numbers, in units of the mean squared distance of a sample from the mean; of labels from
# LEAST_RESIDUALS up, as for classes.
_LOWEST, _DECADES, _PER_DECADE = 1e-6, 10, 8


@dataclass(frozen=True, eq=False)
class LabelMeans:
    """The means of a label's positive and negative samples.

    Attributes
    ----------
    positive, negative : Tensor
        (C, d) float64; zero where there are none.
    odds : Tensor
        (C,) float64, log of the ratio of their numbers.
    weights : Tensor
        (C,) float64, p q / (p + q) of these: the scatter between the two is this times their difference squared.
    """

    positive: Tensor
    negative: Tensor
    odds: Tensor
    weights: Tensor

    @classmethod
    def of(cls, targets: TargetSums) -> LabelMeans:
        """Return the means of labels, which are 0 or 1."""
        p, q = targets.sums, targets.known - targets.sums
        positive = targets.products / p.clamp(min=1).unsqueeze(1)
        negative = (targets.known_sums - targets.products) / q.clamp(min=1).unsqueeze(1)
        return cls(positive, negative, (p / q).log(), p * q / (p + q).clamp(min=1))

    @property
    def difference(self) -> Tensor:
        """(C, d) float64."""
        return self.positive - self.negative

    def head(self, weight: Tensor, usable: Tensor, report: SolveReport, *, prior: bool) -> LinearHead:
        """Return the head whose score is 0 half-way between the means, moved by the odds with ``prior``."""
        middle = (weight * (self.positive + self.negative)).sum(dim=1) / 2.0
        bias = (self.odds if prior else 0.0) - middle
        return LinearHead(
            torch.where(usable.unsqueeze(1), weight, 0.0), torch.where(usable, bias, -torch.inf), usable, report
        )


def needed_targets(stats: FeatureStatistics, *kinds: str) -> TargetSums:
    """Return the sums by target of one of some kinds, or raise ValueError."""
    if stats.targets is None or stats.targets.kind[0] not in kinds:
        raise ValueError(f"this head needs targets that are {' or '.join(kinds)}")
    return stats.targets


def solve_target_means(stats: FeatureStatistics) -> LinearHead:
    """Return FedNCM's head of labels: the difference of the two means, which score 2 and -2."""
    targets = needed_targets(stats, "labels")
    means = LabelMeans.of(targets)
    squares = means.difference.square().sum(dim=1, keepdim=True).clamp(min=1e-300)
    return means.head(4.0 * means.difference / squares, targets.usable, SolveReport(), prior=False)


def likeliest_target_ridges(stats: FeatureStatistics) -> Tensor:
    """Return (C,) float64, the ridge of the largest evidence: one of all labels, or one of each number.

    As :func:`fedstats_app.heads.evidence.evidence_by_ridge`, of the centred targets.
    """
    targets = needed_targets(stats, "labels", "numbers")
    eigenvalues, vectors = torch.linalg.eigh(needed_gram(stats, "ridge") - mean_product(stats))
    eigenvalues = eigenvalues.clamp(min=0.0)
    labels, number = targets.kind == ("labels",), stats.num_examples
    unit = float(eigenvalues.sum()) / max(number, 1) or 1.0
    steps = torch.arange(_DECADES * _PER_DECADE + 1, dtype=torch.float64) / _PER_DECADE
    ridges = unit * (LEAST_RESIDUALS if labels else _LOWEST) * 10.0**steps  # (r,)
    shares = (targets.centred @ vectors).square()  # (C, d)
    energies = targets.energies
    explained = shares @ (1.0 / (eigenvalues.unsqueeze(1) + ridges))  # (C, r)
    residuals = (energies.unsqueeze(1) - explained)[targets.usable]
    if labels:
        residuals = residuals.sum(dim=0, keepdim=True)
    known = targets.known[targets.usable].to(torch.float64).unsqueeze(1)
    known = known.mean(dim=0, keepdim=True) if labels else known
    floor = 1e-12 * energies[targets.usable].sum()
    evidence = -known * residuals.clamp(min=floor).log() - torch.log1p(eigenvalues.unsqueeze(1) / ridges).sum(dim=0)
    best, found = ridges[evidence.argmax(dim=1)], torch.full((len(energies),), unit, dtype=torch.float64)
    found[targets.usable] = best
    return found


def _ridges(stats: FeatureStatistics, ridge: float | Literal["auto"]) -> Tensor:
    if ridge == "auto":
        return likeliest_target_ridges(stats)
    return torch.full((len(needed_targets(stats, "labels", "numbers").known),), float(ridge), dtype=torch.float64)


def _report(ridges: Tensor, how: object, condition: float, deviations: tuple[float, ...] = ()) -> SolveReport:
    shown = sorted(set(ridges.tolist()))
    text = f"{shown[0]:.4g}" + (f" to {shown[-1]:.4g}" if len(shown) > 1 else "")
    auto = " (auto)" if how == "auto" else ""
    parameters = {"ridge_lambda": shown[0]}
    return SolveReport(f"lambda {text}{auto}", parameters, shown[-1], condition, deviations=deviations)


def solve_target_ridge(stats: FeatureStatistics, *, ridge_lambda: float | Literal["auto"] = "auto") -> LinearHead:
    """Return the ridge regression with an intercept that is not regularised, (S + lambda I) w = B, b = mean y - w mu.

    The deviations in the report are those of y about the scores, by the residuals and their degrees of freedom. Of
    labels, whose B is a multiple of the difference of their two means, the Gaussian of the same lambda has the same
    directions: only scale and threshold differ.

    Raises
    ------
    ValueError
        Without targets or a Gram matrix.
    """
    targets, gram = needed_targets(stats, "labels", "numbers"), needed_gram(stats, "ridge")
    ridges, scatter = _ridges(stats, ridge_lambda), gram - mean_product(stats)
    centred, weight, condition = targets.centred, torch.zeros_like(targets.products), 1.0
    freedom = torch.ones_like(targets.sums)
    for ridge in sorted(set(ridges.tolist())):
        of_ridge = ridges == ridge
        rhs = torch.cat([centred[of_ridge].T, scatter], dim=1)
        system = add_to_diagonal(scatter, ridge)
        solved = solve_positive_definite(system, rhs, magnitude=float(gram.diagonal().amax()))
        weight[of_ridge] = solved.x[:, : int(of_ridge.sum())].T
        freedom[of_ridge] += float(solved.x[:, int(of_ridge.sum()) :].trace())
        condition = max(condition, solved.condition_number)
    weight = torch.where(targets.usable.unsqueeze(1), weight, 0.0)
    bias = torch.where(targets.usable, targets.means - weight @ stats.mean, 0.0)
    residuals = targets.energies - 2.0 * (weight * centred).sum(dim=1) + ((weight @ scatter) * weight).sum(dim=1)
    deviations = (residuals.clamp(min=0.0) / (targets.known - freedom).clamp(min=1.0)).sqrt()
    report = _report(ridges, ridge_lambda, condition, tuple(deviations.tolist()))
    return LinearHead(weight, bias, targets.usable, report)


def solve_target_gaussian(
    stats: FeatureStatistics, *, ridge: float | Literal["auto"] = "auto", within: bool = True
) -> LinearHead:
    """Return of each label the log odds of two Gaussians of one covariance: linear discriminant analysis.

    With S the scatter about the mean of all, d the difference of the two means and a = p q / (p + q), the scatter
    within the two groups is S - a d d^T, so that (Sherman and Morrison) its inverse times d is that of S + lambda I
    times d, over 1 - a d^T (S + lambda I)^-1 d.

    Parameters
    ----------
    stats : FeatureStatistics
        With labels and a Gram matrix.
    ridge : float or "auto"
        lambda.
    within : bool
        False takes S for the scatter within.
    """
    targets, gram = needed_targets(stats, "labels"), needed_gram(stats, "Gaussian")
    means, ridges = LabelMeans.of(targets), _ridges(stats, ridge)
    system = add_to_diagonal(gram - mean_product(stats), float(ridges[0]))
    solved = solve_positive_definite(system, means.difference.T, magnitude=float(gram.diagonal().amax()))
    weight = solved.x.T
    left = 1.0 - means.weights * (weight * means.difference).sum(dim=1) if within else torch.ones_like(means.odds)
    freedom = max(stats.num_examples - 2, 1)
    weight = weight * (freedom / left.clamp(min=1e-6)).unsqueeze(1)
    report = _report(ridges, ridge, solved.condition_number)
    return means.head(weight, targets.usable, report, prior=True)


def solve_target_head(stats: FeatureStatistics, ridge_lambda: float | Literal["auto"] = "auto") -> LinearHead:
    """Return the ridge of numbers, or of labels with the Gaussian's scale and threshold."""
    if needed_targets(stats, "labels", "numbers").kind == ("labels",):
        return solve_target_gaussian(stats, ridge=ridge_lambda)
    return solve_target_ridge(stats, ridge_lambda=ridge_lambda)


def shifted(head: LinearHead, thresholds: Tensor) -> LinearHead:
    """Return a head of labels whose scores are less by (C,) thresholds: at least 0 where they were at least these."""
    bias = torch.where(head.present, head.bias - thresholds, head.bias)
    return replace(head, bias=bias)


def half_width(deviation: float, coverage: float = 0.9) -> float:
    """Return half the width of the interval that holds a normal number with this probability."""
    return deviation * math.sqrt(2.0) * float(torch.erfinv(torch.tensor(coverage, dtype=torch.float64)))


@dataclass(frozen=True, eq=False)
class TargetLeaveOneOut:
    """Values from which leave-one-out scores of a ridge head follow, beside the head (Allen's 1974 PRESS statistic).

    With h = 1 / n + (x - mu)^T (S + lambda I)^-1 (x - mu), the ridge without a sample of target y scores it
    (s - h s_y) / (1 - h), s its score with it and s_y the score that y would be. An unknown target leaves s.

    Attributes
    ----------
    inverse : Tensor
        (d, d) float64, (S + lambda I)^-1.
    mean : Tensor
        (d,) float64, mu.
    ends : Tensor
        (2, C) float64, the scores that 0 and 1 would be.
    number : int
        n.
    """

    inverse: Tensor
    mean: Tensor
    ends: Tensor
    number: int

    def __post_init__(self) -> None:
        dim = len(self.mean)
        for name, shape in (("inverse", (dim, dim)), ("mean", (dim,)), ("ends", (2, None))):
            check_tensor(name, getattr(self, name), shape, torch.float64)

    @classmethod
    def of(cls, stats: FeatureStatistics, head: LinearHead) -> TargetLeaveOneOut:
        """Return that of a head made by :func:`solve_target_head`.

        Of several numbers the smallest ridge says how much a sample weighs, so that none weighs too little.
        """
        ridge_lambda = head.report.parameters["ridge_lambda"]
        labels = needed_targets(stats, "labels", "numbers").kind == ("labels",)
        ridge = solve_target_ridge(stats, ridge_lambda=ridge_lambda) if labels else head
        system = add_to_diagonal(needed_gram(stats, "leave-one-out") - mean_product(stats), ridge_lambda)
        lengths = [torch.linalg.vector_norm(made.weight, dim=1) for made in (head, ridge)]
        scale = torch.where(head.present, lengths[0] / lengths[1].clamp(min=1e-300), 1.0)
        zero = torch.where(head.present, head.bias - scale * ridge.bias, 0.0)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(system))
        return cls(inverse, stats.mean, torch.stack([zero, zero + scale]), stats.num_examples)

    def scores(self, head: LinearHead, features: Tensor, targets: Tensor) -> Tensor:
        """Score (n, d) features of training samples with (n, C) targets by the head without them, (n, C) float64."""
        scores, x = head.logits(features), features.to(torch.float64) - self.mean
        leverage = (1.0 / max(self.number, 1) + ((x @ self.inverse) * x).sum(dim=1, keepdim=True)).clamp(max=1.0 - 1e-6)
        own = self.ends[0] + targets * (self.ends[1] - self.ends[0])
        left = (scores - leverage * own) / (1.0 - leverage)
        return torch.where(targets.isnan() | ~head.present, scores, left)
