"""FedRoot's completed statistics, against numpy, and its heads, against those of the exact Gram matrix."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.heads.fedroot import complete, solve_completed
from fedstats_app.statistics import FeatureStatistics, LowRankStatistics, ScatterSpec, StatisticsSpec
from fedstats_app.statistics.collected import StatisticsSum
from tests.support.compare import relative_difference
from tests.support.draws import Sample, samples

CLASSES, DIM, CLIENTS = 4, 24, 7


def federation(seed: int, n: int = 200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features, labels and clients."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    features = rng.normal(size=(n, DIM)) * np.linspace(2, 0.2, DIM) + 0.7 * rng.normal(size=(CLASSES, DIM))[labels]
    clients = (labels + rng.integers(0, 3, n)) % CLIENTS
    return torch.from_numpy(features), torch.from_numpy(labels), torch.from_numpy(clients)


def low_rank(
    sample: Sample | tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rank: str,
    dtype: torch.dtype = torch.float32,
    means_per_class: int = 1,
) -> LowRankStatistics:
    """Return what the server holds after clients sent factors of a rank."""
    features, labels, clients = (
        sample if isinstance(sample, tuple) else (sample.features, sample.labels, sample.clients)
    )
    rule = RankRule.parse(rank)
    spec = StatisticsSpec(scatter=ScatterSpec(rule), means_per_class=means_per_class)
    total = StatisticsSum(5, features.shape[1], gram=False, keep_rows=True, scatter=True)
    for client in range(CLIENTS):
        own = spec.from_features(features[clients == client], labels[clients == client], 5)
        assert own.scatter is not None
        chosen = rule.rank(int(own.rows.num_examples), len(own.scatter), lambda rank: rank, own.scatter.energies)
        total.add(own.with_scatter(own.scatter.truncated(chosen, dtype)))
    return total.low_rank()


def literal_gram(features: np.ndarray, labels: np.ndarray, clients: np.ndarray, factor: float) -> np.ndarray:
    """Return G_hat client by client and class by class, by singular value decompositions."""
    dim, of_means, of_factors, left_out = features.shape[1], 0.0, 0.0, 0.0
    means: dict[int, list[tuple[int, np.ndarray]]] = {}
    for client in sorted(set(clients.tolist())):
        centred = []
        for label in sorted(set(labels[clients == client].tolist())):
            own = features[(clients == client) & (labels == label)]
            means.setdefault(label, []).append((len(own), own.mean(axis=0)))
            of_means = of_means + len(own) * np.outer(own.mean(axis=0), own.mean(axis=0))
            centred.append(own - own.mean(axis=0))
        z = np.concatenate(centred)
        _, values, directions = np.linalg.svd(z, full_matrices=False)
        rank = round(factor * np.sqrt(len(z)))
        kept = values[:rank, None] * directions[:rank]
        of_factors = of_factors + kept.T @ kept
        left_out += (z**2).sum() - (kept**2).sum()
    shape, freedom = np.zeros((dim, dim)), 0
    for rows in means.values():
        centre = sum(n * mean for n, mean in rows) / sum(n for n, _ in rows)
        shape += sum(n * np.outer(mean - centre, mean - centre) for n, mean in rows)
        freedom += len(rows) - 1
    weight = freedom / (freedom + dim / 2)
    spread = weight * shape / np.trace(shape) + (1 - weight) * np.eye(dim) / dim
    return of_means + of_factors + left_out * spread


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_completed_statistics_are_those_of_the_formula(factor: float) -> None:
    drawn = federation(0)
    expected = literal_gram(*(one.numpy() for one in drawn), factor)

    held = low_rank(drawn, f"{factor} sqrt(n)")
    found = complete(held.rows, held.scatter, held.left_out)

    assert found.gram is not None and relative_difference(found.gram, expected) <= 1e-6  # factors in float32
    sums = FeatureStatistics.from_features(drawn[0], drawn[1], 5)
    assert torch.equal(found.class_counts, sums.class_counts)
    assert relative_difference(found.class_sums, sums.class_sums) <= 1e-12


@given(samples(), st.integers(1, 3))
def test_full_rank_is_the_exact_gram_matrix(sample: Sample, means_per_class: int) -> None:
    held = low_rank(sample, "full", means_per_class=means_per_class)
    found = complete(held.rows, held.scatter, held.left_out).gram
    exact = FeatureStatistics.from_features(sample.features, sample.labels, 5).gram

    assert held.left_out == 0.0 and found is not None and exact is not None
    assert relative_difference(found, exact, scale=float(exact.trace())) <= 1e-6 and torch.equal(found, found.T)


@given(samples(), st.sampled_from(["0", "0.5 sqrt(n)", "sqrt(n)", "80%"]))
def test_the_trace_is_that_of_the_gram_matrix(sample: Sample, rank: str) -> None:
    held = low_rank(sample, rank)
    found = complete(held.rows, held.scatter, held.left_out).gram
    energy = float(sample.features.to(torch.float64).square().sum())
    assert found is not None and float(found.trace()) == pytest.approx(energy, rel=1e-6, abs=1e-300)


def test_both_heads_are_added_at_one_scale_without_the_noise_of_class_means() -> None:
    features, labels, _ = federation(4)
    kept = (labels > 0) | (torch.arange(len(labels)) < 20)  # class 0 is rare
    features, labels = features[kept], labels[kept]
    sums = FeatureStatistics.from_features(features, labels, 5)  # and class 4 is absent
    found = solve_completed(sums, ridge_lambda=3.0)

    x, y = features.numpy(), labels.numpy()
    means, n = np.stack([x[y == label].mean(axis=0) for label in range(4)]), np.bincount(y).astype(float)
    scatter = sum((x[y == label] - means[label]).T @ (x[y == label] - means[label]) for label in range(4))
    ridge = np.linalg.inv(x.T @ x + 3.0 * np.eye(DIM)) @ (means * n[:, None]).T
    inverse = np.linalg.inv(scatter + 3.0 * np.eye(DIM))
    gaussian, noise = (len(y) - 4) * inverse @ means.T, np.trace(scatter @ inverse)
    squared = np.einsum("cd,dc->c", means, gaussian) - noise / n
    weight, bias = np.zeros((DIM, 4)), np.zeros(4)
    ridge /= np.linalg.norm(ridge, axis=0)
    for times, w, b in ((1, ridge, np.zeros(4)), (2, gaussian, np.log(n / n.sum()) - squared / 2)):
        scores = means @ w + b
        lead = (np.diag(scores) - scores.mean(axis=1)) @ n / n.sum()
        weight, bias = weight + times * w / lead, bias + times * b / lead
    assert relative_difference(found.weight[:4], weight.T) <= 1e-9 and relative_difference(found.bias[:4], bias) <= 1e-9
    assert not found.present[4] and not found.weight[4].any() and found.report.parameters == {"ridge_lambda": 3.0}


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0, 0, 1, 1]])
def test_where_the_gaussian_says_nothing_both_is_the_ridge(labels: list[int]) -> None:
    """With one class, one sample of each, or samples that are all alike, and with zeros."""
    same = torch.ones(len(labels), 3) if len(labels) == 4 else torch.eye(3)
    for features in (same, 0.0 * same):
        sums = FeatureStatistics.from_features(features, torch.tensor(labels), 4)
        both, ridge = (solve_completed(sums, head=head) for head in ("both", "ridge"))
        assert torch.equal(both.weight, ridge.weight) and torch.equal(both.bias, ridge.bias)
