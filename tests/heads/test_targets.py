"""Heads of several labels or numbers are those of scikit-learn on all data in one place."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.metrics import average_precision_score, f1_score, r2_score, roc_auc_score

from fedstats_app.heads.target_scores import TargetScores, score_bins
from fedstats_app.heads.targets import (
    TargetLeaveOneOut,
    shifted,
    solve_target_gaussian,
    solve_target_head,
    solve_target_means,
    solve_target_ridge,
)
from fedstats_app.statistics import FeatureStatistics, TargetSums


def statistics(features: torch.Tensor, targets: torch.Tensor, kind: str = "labels") -> FeatureStatistics:
    everything = FeatureStatistics.from_features(features, torch.zeros(len(features), dtype=torch.int64), 1)
    total = TargetSums.zeros(kind, targets.shape[1], features.shape[1])
    total.add_(features, targets)
    return replace(everything, targets=total)


def labelled(seed: int, n: int = 200, unknown: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw features, and three labels of which each depends on them, one rare."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 6, generator=draw, dtype=torch.float64) + 3.0
    scores = (features - 3.0) @ torch.randn(6, 3, generator=draw, dtype=torch.float64)
    scores += 2.0 * torch.randn(n, 3, generator=draw, dtype=torch.float64)
    targets = (scores > torch.tensor([0.0, 1.0, 4.0])).to(torch.float64)
    targets[:2] = torch.tensor([[1.0] * 3, [0.0] * 3], dtype=torch.float64)
    targets[2:][torch.rand(n - 2, 3, generator=draw) < unknown] = torch.nan
    return features, targets


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.floats(-3, 3), st.sampled_from(["labels", "numbers"]))
def test_the_ridge_is_scikit_learns(seed: int, exponent: float, kind: str) -> None:
    features, targets = labelled(seed, unknown=0.1)
    if kind == "numbers":
        targets = targets * 7.0 - 2.0
    found = solve_target_ridge(statistics(features, targets, kind), ridge_lambda=10.0**exponent)
    filled = torch.where(targets.isnan(), targets.nanmean(dim=0), targets)
    expected = Ridge(alpha=10.0**exponent).fit(features.numpy(), filled.numpy())
    np.testing.assert_allclose(found.weight, expected.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.bias, expected.intercept_, rtol=1e-6, atol=1e-9)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_the_gaussian_is_one_vs_rest_discriminant_analysis(seed: int) -> None:
    features, targets = labelled(seed)
    found = solve_target_gaussian(statistics(features, targets), ridge=0.0)
    for label in range(3):
        expected = LinearDiscriminantAnalysis(solver="lsqr").fit(features.numpy(), targets[:, label].numpy())
        # scikit-learn divides the scatter within by n.
        expected.coef_ *= (len(features) - 2) / len(features)
        odds = np.log(expected.priors_[1] / expected.priors_[0])
        np.testing.assert_allclose(found.weight[label], expected.coef_[0], rtol=1e-6)
        scores = (expected.intercept_[0] - odds) * (len(features) - 2) / len(features) + odds
        np.testing.assert_allclose(float(found.bias[label]), scores, rtol=1e-6)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.floats(-2, 2))
def test_ridge_and_gaussian_have_one_direction(seed: int, exponent: float) -> None:
    stats = statistics(*labelled(seed, unknown=0.2))
    heads = [
        solve_target_ridge(stats, ridge_lambda=10.0**exponent),
        solve_target_gaussian(stats, ridge=10.0**exponent, within=False),
        solve_target_gaussian(stats, ridge=10.0**exponent),
    ]
    ridge, *others = (torch.nn.functional.normalize(head.weight, dim=1) for head in heads)
    for other in others:
        torch.testing.assert_close(other, ridge, rtol=1e-6, atol=1e-8)


def test_numbers_by_evidence_are_predicted_as_by_cross_validation_on_all_data() -> None:
    """Abalone-like: few features that say nearly the same, noise, and two numbers of different units."""
    rng = np.random.default_rng(0)
    size = rng.gamma(8.0, 0.06, (4000, 1))
    features = size ** np.array([1, 1, 1, 2, 3, 3, 3]) * np.exp(0.1 * rng.standard_normal((4000, 7)))
    rings = 4.0 + 9.0 * size[:, 0] + 2.0 * rng.standard_normal(4000)
    targets = np.stack([rings, 1000.0 * features[:, 4] + 10.0 * rng.standard_normal(4000)], axis=1)
    x, y = torch.from_numpy(features[:3000]), torch.from_numpy(targets[:3000])
    head = solve_target_head(statistics(x, y, "numbers"))
    found = head.logits(torch.from_numpy(features[3000:])).numpy()
    expected = RidgeCV(alphas=np.logspace(-6, 4, 81), alpha_per_target=True).fit(features[:3000], targets[:3000])
    for number in range(2):
        ours = r2_score(targets[3000:, number], found[:, number])
        theirs = r2_score(targets[3000:, number], expected.predict(features[3000:])[:, number])
        assert ours == pytest.approx(theirs, abs=0.003)
    measures = TargetScores.of("numbers", torch.from_numpy(found), torch.from_numpy(targets[3000:]), head).measures()
    assert measures["per_target_r2"][0] == pytest.approx(r2_score(targets[3000:, 0], found[:, 0]))
    assert 0.87 < measures["mean_within_interval"] < 0.93


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32), st.floats(-2, 2))
def test_leave_one_out_scores_are_those_of_the_ridge_without_each_sample(seed: int, exponent: float) -> None:
    features, targets = labelled(seed, n=30)
    stats = statistics(features, targets)
    head = solve_target_gaussian(stats, ridge=10.0**exponent)
    left_out = TargetLeaveOneOut.of(stats, head)
    found = left_out.scores(head, features, targets)
    zero, one = left_out.ends
    for i in range(30):
        others = torch.arange(30) != i
        ridge = Ridge(alpha=10.0**exponent).fit(features[others].numpy(), targets[others].numpy())
        expected = zero.numpy() + (one - zero).numpy() * ridge.predict(features[i : i + 1].numpy())[0]
        np.testing.assert_allclose(found[i], expected, rtol=1e-5, atol=1e-5)


def test_numbers_are_left_out_as_labels_are() -> None:
    features, targets = labelled(0, n=30)
    targets = 5.0 * targets + features[:, :3]
    stats = statistics(features, targets, "numbers")
    head = solve_target_head(stats, 0.7)
    found = TargetLeaveOneOut.of(stats, head).scores(head, features, targets)
    for i in range(30):
        others = torch.arange(30) != i
        ridge = Ridge(alpha=0.7).fit(features[others].numpy(), targets[others].numpy())
        np.testing.assert_allclose(found[i], ridge.predict(features[i : i + 1].numpy())[0], rtol=1e-6, atol=1e-6)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_scores_add_up_to_scikit_learns_measures(seed: int) -> None:
    features, targets = labelled(seed, unknown=0.1)
    head = solve_target_head(statistics(features, targets))
    scores = head.logits(features)
    parts = [TargetScores.of("labels", scores[p], targets[p], head) for p in torch.arange(200).split(70)]
    total = sum(parts, TargetScores.zeros("labels", 3))
    f1, micro = total.f1()
    known = ~targets.isnan()
    given = (scores >= 0).numpy()
    for label in range(3):
        own = known[:, label]
        y, s = targets[own, label].numpy(), score_bins(scores[own, label]).numpy()  # samples of one bin are ties
        assert float(total.per_label_precision[label]) == pytest.approx(average_precision_score(y, s))
        assert float(total.histograms.per_class_auroc[label]) == pytest.approx(roc_auc_score(y, s))
        assert float(f1[label]) == pytest.approx(f1_score(y, given[own.numpy(), label]))
    flat = known.numpy()
    assert micro == pytest.approx(f1_score(targets.numpy()[flat], given[flat]))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32))
def test_the_best_thresholds_make_no_f1_smaller(seed: int) -> None:
    features, targets = labelled(seed)
    head = solve_target_head(statistics(features, targets))
    before = TargetScores.of("labels", head.logits(features), targets, head)
    for common in (False, True):
        moved = shifted(head, before.best_thresholds(common=common))
        after = TargetScores.of("labels", moved.logits(features), targets, moved)
        if common:
            assert after.f1()[1] >= before.f1()[1] - 1e-9
        else:
            assert bool((after.f1()[0] >= before.f1()[0] - 1e-9).all())


@pytest.mark.parametrize("solve", [solve_target_head, solve_target_means])
def test_a_label_that_all_or_no_samples_have_is_never_given(solve: object) -> None:
    features, targets = labelled(3)
    targets[:, 0], targets[:, 2] = 1.0, torch.nan
    head = solve(statistics(features, targets))  # type: ignore[operator]
    assert head.present.tolist() == [False, True, False] and bool(torch.isinf(head.logits(features)[:, [0, 2]]).all())
