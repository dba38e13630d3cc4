"""FedNCM's head, and rows around the geometric median: what one client among many says changes them little."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestCentroid

from fedstats_app.heads import solve_ncm
from fedstats_app.heads.ncm import geometric_median, robust_rows
from fedstats_app.statistics import ClassMeanRows, FeatureStatistics
from tests.support.clients import NUM_CLASSES, Clients
from tests.support.compare import absolute_difference, same_bits
from tests.support.golden import Federation


def test_golden_head_from_sums_and_from_rows(federation: Federation) -> None:
    head = solve_ncm(federation.statistics())
    assert absolute_difference(head.weight, federation["ncm_W"]) <= 1e-12
    assert absolute_difference(head.bias, np.zeros(federation.num_classes)) == 0.0
    assert head.present.tolist() == (federation["N_c"] > 0).tolist()
    assert absolute_difference(solve_ncm(federation.rows().summed()).weight, federation["ncm_W"]) <= 1e-12


def test_the_authors_heads_are_ours(federation: Federation) -> None:
    weight = solve_ncm(federation.statistics()).weight
    present = federation["N_c"] > 0
    assert absolute_difference(weight, federation["ref_ncm_W_f64"]) <= 1e-12
    assert absolute_difference(weight, federation["ref_ncm_W_f32"]) <= 1e-6
    # The FedNCM repository gives NaN for an absent class; a head of ours never has one.
    assert absolute_difference(weight[torch.from_numpy(present)], federation["ref_ncmleg_W_f32"][present]) <= 1e-6
    assert bool(torch.isfinite(weight).all())


def test_predictions_are_those_of_the_nearest_centroid_by_cosine() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    features = rng.normal(size=(4, 8))[labels] * 2 + rng.normal(size=(200, 8))
    head = solve_ncm(FeatureStatistics.from_features(torch.from_numpy(features), torch.from_numpy(labels), 4))
    # Euclidean distance between unit vectors orders like the cosine. scikit-learn wants a spread: around each mean.
    means = np.stack([features[labels == c].mean(axis=0) for c in range(4)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    centroids = NearestCentroid().fit(np.concatenate([means - 0.1, means + 0.1]), np.tile(range(4), 2))
    expected = centroids.predict(features / np.linalg.norm(features, axis=1, keepdims=True))
    assert head.predict(torch.from_numpy(features)).tolist() == expected.tolist()


def test_rows_and_sums_give_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.rand(90, 5, generator=generator), torch.arange(90) % 7
    parts = [slice(0, 30), slice(30, 55), slice(55, 90)]
    rows = ClassMeanRows.concatenate([ClassMeanRows.from_features(features[p], labels[p], 7) for p in parts])
    total = FeatureStatistics.zeros(7, 5, gram=False)
    for p in parts:
        total = total + FeatureStatistics.from_features(features[p], labels[p], 7, gram=False)
    assert same_bits(solve_ncm(rows.summed()).weight, solve_ncm(total).weight)


CLIENTS = Clients(40, seed=1)
HONEST = ClassMeanRows.concatenate(
    ClassMeanRows.from_features(*CLIENTS.part(client), NUM_CLASSES) for client in range(40)
)


def accuracy(rows: ClassMeanRows) -> float:
    head = solve_ncm(rows.summed())
    return float((head.predict(CLIENTS.features) == CLIENTS.labels).double().mean())


@pytest.mark.parametrize("seed", range(5))
def test_no_point_nearby_has_a_smaller_sum_of_distances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, weights = torch.from_numpy(rng.normal(size=(9, 3))), torch.from_numpy(rng.uniform(1, 5, 9))

    def total(center: torch.Tensor) -> float:
        return float((weights * torch.linalg.vector_norm(points - center, dim=1)).sum())

    median = geometric_median(points, weights)

    assert all(total(median) <= total(median + 0.01 * torch.from_numpy(rng.normal(size=3))) for _ in range(50))


def test_of_one_row_and_of_equal_rows_it_is_the_row() -> None:
    point = torch.tensor([[3.0, 4.0]], dtype=torch.float64)

    torch.testing.assert_close(geometric_median(point.repeat(5, 1), torch.ones(5, dtype=torch.float64)), point[0])
    one = ClassMeanRows(torch.tensor([2]), torch.tensor([7]), point, 4)
    torch.testing.assert_close(robust_rows(one).means, point)
    assert len(robust_rows(ClassMeanRows.zeros(4, 2))) == 0


def test_the_class_means_are_the_medians() -> None:
    made = robust_rows(HONEST)

    for class_id in range(NUM_CLASSES):
        own = made.class_ids == class_id
        weights = made.counts[own].double()
        expected = geometric_median(HONEST.means[own], weights)
        torch.testing.assert_close(made.summed().class_means[class_id], expected)


@pytest.mark.parametrize("number", [1000, 10**6])
def test_a_swap_costs_little_and_clean_rows_nothing_much(number: int) -> None:
    summed = HONEST.summed()
    swap = ClassMeanRows(
        torch.arange(NUM_CLASSES), torch.full((NUM_CLASSES,), number), summed.class_means.roll(1, 0), NUM_CLASSES
    )
    clean = accuracy(HONEST)

    assert accuracy(HONEST + swap) < 0.3 < clean
    assert accuracy(robust_rows(HONEST + swap)) > clean - 0.03
    assert accuracy(robust_rows(HONEST)) > clean - 0.02
