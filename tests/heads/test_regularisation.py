"""The expected accuracy against what comes true, its heads against the solvers, and laws of the choice."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.heads import LinearHead, solve_fedcof, solve_ncm, solve_ridge
from fedstats_app.heads.regularisation import (
    LEAST_RESIDUALS,
    MOST_FREEDOM,
    PRIOR_DEVIATION,
    HeadMap,
    Spread,
    choose_ridge,
    likeliest_ridge,
    with_between_class,
    without_between_class,
)
from fedstats_app.heads.scatter import class_mean_products, within_class_freedom
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics

DIM, SEPARATION = 40, 0.35


def _draw(num_classes: int, per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw samples of classes with one covariance, whose variances fall from 4 to 0.04."""
    means = torch.randn(num_classes, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scales = torch.logspace(0, -1, DIM, dtype=torch.float64) * 2
    labels = torch.arange(num_classes).repeat_interleave(per_class)
    noise = torch.randn(len(labels), DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 1.0 + (SEPARATION * means[labels] + noise) * scales, labels


def _spread(statistics: FeatureStatistics) -> Spread:
    assert statistics.gram is not None
    freedom, counts = within_class_freedom(statistics), statistics.class_counts.double()
    scatter = statistics.gram - class_mean_products(statistics)
    spread = Spread.of(scatter, statistics.class_means, counts, float(freedom), freedom)
    assert spread is not None
    return spread


@pytest.mark.parametrize("head", [with_between_class, without_between_class], ids=["ridge", "without between-class"])
@pytest.mark.parametrize("per_class", [15, 100])
def test_expected_accuracy_of_two_classes_comes_true(per_class: int, head: HeadMap) -> None:
    new, new_labels = _draw(2, 20_000, seed=99)
    gaps: dict[float, list[float]] = {}
    for seed in range(1, 13):
        statistics = FeatureStatistics.from_features(*_draw(2, per_class, seed), 2)
        spread = _spread(statistics)
        for share in (0.05, 1.0, 30.0):
            between = head is with_between_class
            solved = solve_ridge(statistics, ridge_lambda=share * spread.residual, between_class=between)
            true = float((solved.predict(new) == new_labels).double().mean())
            gaps.setdefault(share, []).append(spread.expected_accuracy(share * spread.residual, head) - true)
    for share, found in gaps.items():
        if spread.directions(share * spread.residual) <= MOST_FREEDOM * spread.freedom:
            assert abs(sum(found) / len(found)) < 0.03, (share, found)


def _reference(spread: Spread, head: HeadMap, ridge: float) -> tuple[Tensor, Tensor]:
    """Return rows of the head, in the scatter's eigenbasis, and its bias."""
    shrunk = spread.means / (spread.eigenvalues + ridge).unsqueeze(1)
    transform, bias = head(spread.means.T @ shrunk, shrunk.T @ shrunk, spread.counts)
    return (shrunk @ transform).T, bias


def _same_scores(spread: Spread, head: HeadMap, ridge: float, solved: LinearHead) -> bool:
    """Compare by inner products of rows and with class means, which no basis changes."""
    rows, bias = _reference(spread, head, ridge)
    scores = solved.weight @ solved.weight.T
    return torch.allclose(rows @ rows.T, scores, rtol=1e-6, atol=1e-9 * float(scores.abs().max())) and torch.allclose(
        bias, solved.bias, rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("ridge", [0.3, 30.0])
def test_heads_that_are_judged_are_the_heads_that_are_solved(ridge: float) -> None:
    features, labels = _draw(4, 30, seed=3)
    labels = torch.where(torch.arange(len(labels)) % 3 == 0, 3, labels)  # of unequal sizes
    statistics = FeatureStatistics.from_features(features, labels, 4)
    spread = _spread(statistics)
    assert _same_scores(spread, with_between_class, ridge, solve_ridge(statistics, ridge_lambda=ridge))
    without = solve_ridge(statistics, ridge_lambda=ridge, between_class=False)
    assert _same_scores(spread, without_between_class, ridge, without)


@pytest.mark.parametrize("head", [with_between_class, without_between_class])
def test_the_choice_follows_the_features_scale_and_knows_no_order_of_classes(head: HeadMap) -> None:
    features, labels = _draw(5, 20, seed=7)
    features = features.float().double()
    chosen = _choice(features, labels, head)
    assert _choice(features * 1e6, labels, head) == pytest.approx(chosen * 1e12, rel=1e-6)
    assert _choice(features, (labels + 2) % 5, head) == pytest.approx(chosen, rel=1e-6)
    turned, _ = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    assert _choice(features @ turned, labels, head) == pytest.approx(chosen, rel=1e-6)


def _choice(features: Tensor, labels: Tensor, head: HeadMap) -> float:
    return choose_ridge(_spread(FeatureStatistics.from_features(features, labels, 5)), head)


def _likeliest(features: Tensor, labels: Tensor) -> float:
    statistics = FeatureStatistics.from_features(features, labels, int(labels.max()) + 1)
    assert statistics.gram is not None
    ridge = likeliest_ridge(statistics)
    assert ridge is not None
    return ridge


def test_the_likeliest_ridge_has_the_density_of_centred_labels_with_a_prior() -> None:
    features, labels = _draw(3, 50, seed=4)
    labels = torch.where(torch.arange(len(labels)) % 3 > 0, labels.roll(50), labels)  # most of them wrong
    samples, one_hot = len(features), torch.nn.functional.one_hot(labels).double()
    least = LEAST_RESIDUALS * _spread(FeatureStatistics.from_features(features, labels, 3)).residual
    features, one_hot = features - features.mean(dim=0), one_hot - one_hot.mean(dim=0)

    def log_density(ridge: float) -> float:
        covariance = torch.eye(samples, dtype=torch.float64) + features @ features.T / ridge
        misfit = float((one_hot * torch.linalg.solve(covariance, one_hot)).sum()) / one_hot.numel()
        labels = torch.distributions.MultivariateNormal(torch.zeros(samples, dtype=torch.float64), misfit * covariance)
        prior = torch.distributions.Normal(0.0, PRIOR_DEVIATION).log_prob(torch.tensor(ridge / least).log())
        return float(labels.log_prob(one_hot.T).sum() + 3 * prior)

    found = _likeliest(features + 5.0, labels)
    assert found > 1.1 * least
    assert log_density(found) > max(log_density(found * factor) for factor in (10**-0.25, 10**0.25))


@given(st.integers(2, 5), st.integers(2, 30), st.integers(0, 99), st.floats(-5, 5))
def test_the_likeliest_ridge_follows_scale_alone(num_classes: int, per_class: int, seed: int, exponent: float) -> None:
    features, labels = _draw(num_classes, per_class, seed)
    chosen, scale = _likeliest(features, labels), 10.0**exponent
    turned, _ = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    assert _likeliest(features * scale, labels) == pytest.approx(chosen * scale**2, rel=1e-6)
    assert _likeliest(features @ turned, labels) == pytest.approx(chosen, rel=1e-6)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    assert _likeliest(features[order], (labels[order] + 1) % num_classes) == pytest.approx(chosen, rel=1e-6)


def test_copies_of_samples_do_not_make_the_smallest_ridge_look_best() -> None:
    features, labels = _draw(5, 5, seed=11)
    noise = 0.01 * torch.randn(8 * len(features), DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    copies = FeatureStatistics.from_features(features.repeat(8, 1) + noise, labels.repeat(8), 5)
    new, new_labels = _draw(5, 2_000, seed=99)

    def accuracy(ridge: float | str) -> float:
        head = solve_ridge(copies, ridge_lambda=ridge)  # type: ignore[arg-type]
        return float((head.predict(new) == new_labels).double().mean())

    residual = _spread(copies).residual
    assert accuracy("auto") > accuracy(1e-4 * residual) + 0.02
    chosen = solve_ridge(copies, ridge_lambda="auto").report.parameters["ridge_lambda"]
    assert chosen >= 0.999 * LEAST_RESIDUALS * residual


def test_means_whose_spread_misleads_leave_fedncm() -> None:
    """Two classes along the only direction in which means were seen to vary, by chance of three draws."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.tensor([[6.0, 0.0], [0.0, 6.0]], dtype=torch.float64)
    means = torch.cat([centres[[0, 0, 1, 1]], torch.zeros(4, 60, dtype=torch.float64)], dim=1)
    means += torch.randn(4, 62, generator=generator, dtype=torch.float64)
    rows = ClassMeanRows(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 30, 1, 30]), means, 2)
    head = solve_fedcof(rows, shrinkage="auto")
    ncm = solve_ncm(rows.summed())
    new = torch.cat([centres, torch.zeros(2, 60, dtype=torch.float64)], dim=1).repeat(500, 1)
    new = new + torch.randn(1000, 62, generator=generator, dtype=torch.float64)
    right = torch.arange(1000) % 2
    accuracy, of_ncm = (float((one.predict(new) == right).double().mean()) for one in (head, ncm))
    assert accuracy >= of_ncm - 0.02


@pytest.mark.parametrize(("dim", "shift"), [(40, 0.0), (40, 2.0), (200, 1.0)])
def test_classes_that_differ_by_site_do_not_bring_fedcof_below_fedncm(dim: int, shift: float) -> None:
    generator, scales = torch.Generator().manual_seed(5), torch.logspace(0, -1.5, dim, dtype=torch.float64)
    labels, site = torch.arange(3000) % 10, torch.arange(3000) // 500
    moved = shift * torch.randn(6, 10, dim, generator=generator, dtype=torch.float64)
    centres = torch.randn(10, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(3000, dim, generator=generator, dtype=torch.float64)
    features = 8.0 + scales * (centres[labels] + moved[site, labels] + noise)
    parts = [FeatureStatistics.from_features(features[site == k], labels[site == k], 10) for k in range(6)]
    sums, counts = torch.cat([part.class_sums for part in parts]), torch.cat([part.class_counts for part in parts])
    rows = ClassMeanRows(torch.arange(10).repeat(6), counts, num_classes=10, class_sums=sums)
    accuracy, of_ncm = (
        float((one.predict(features) == labels).double().mean())
        for one in (solve_fedcof(rows, shrinkage="auto"), solve_ncm(rows.summed()))
    )
    assert accuracy >= of_ncm - 0.01
