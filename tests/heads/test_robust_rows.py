"""Rows around the geometric median: what one client among many says changes them little, and clean ones hardly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedstats_app.heads import solve_ncm
from fedstats_app.heads.ncm import geometric_median, robust_rows
from fedstats_app.statistics import ClassMeanRows
from tests.support.clients import NUM_CLASSES, Clients

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
