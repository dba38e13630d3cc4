import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.statistics.accumulation import (
    add_rows_to_gram,
    add_to_group_sums,
    check_features,
    mirror_upper,
    pack_upper,
    unpack_upper,
)
from tests.support.compare import relative_difference


def test_group_sums_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    features, groups = rng.normal(size=(50, 4)), rng.integers(0, 6, 50)
    expected = np.stack([features[groups == group].sum(axis=0) for group in range(7)])
    sums = torch.zeros(7, 4, dtype=torch.float64)
    add_to_group_sums(sums, torch.from_numpy(features), torch.from_numpy(groups))
    assert relative_difference(sums, expected) <= 1e-14
    add_to_group_sums(sums, torch.from_numpy(features), torch.from_numpy(groups))
    assert relative_difference(sums, 2 * expected) <= 1e-14


@given(dim=st.integers(0, 9), seed=st.integers(0, 2**32 - 1))
def test_a_packed_triangle_unpacks_to_the_mirrored_matrix(dim: int, seed: int) -> None:
    matrix = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    packed, mirrored = pack_upper(matrix), mirror_upper(matrix)
    assert packed.shape == (dim * (dim + 1) // 2,) and torch.equal(unpack_upper(packed, dim), mirrored)
    assert torch.equal(mirrored, mirrored.T) and torch.equal(torch.triu(mirrored), torch.triu(matrix))


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.zeros(6), torch.zeros(6, dtype=torch.int64), r"\(n, d\) floating point, .* got \(6,\)"),
        (torch.tensor([[1], [2]]), torch.zeros(2, dtype=torch.int64), r"got \(2, 1\) torch.int64"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), r"with \(n,\) labels, .* and \(3,\)"),
        (torch.zeros(2, 3), torch.zeros(2), r"labels must be \(any\) int64.*got \(2,\) torch.float32"),
        (torch.zeros(2, 3), torch.tensor([-1, 2]), r"\[0, 2\), got values from -1 to 2"),
        (torch.tensor([[1.0], [torch.nan]]), torch.tensor([0, 1]), r"finite, got NaN or infinity in 1 of 2 rows"),
        (torch.tensor([[1.0], [-torch.inf]]), torch.tensor([0, 1]), r"finite, got NaN or infinity in 1 of 2 rows"),
    ],
)
def test_what_cannot_be_summed_is_refused(features: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_features(features, labels, 2)


@pytest.mark.parametrize("dim", [1, 7, 64, 200, 1280])
@pytest.mark.parametrize("rows", [0, 1, 2, 13])
def test_few_rows_are_added_block_by_block_as_if_whole(rows: int, dim: int) -> None:
    draw = torch.Generator().manual_seed(dim + rows)
    parts = [torch.randn(rows, dim, generator=draw, dtype=torch.float64).triu() for _ in range(3)]
    whole, in_blocks = torch.zeros(dim, dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64)
    for part in parts:
        whole += mirror_upper(part.T @ part)
        add_rows_to_gram(in_blocks, part)
    assert relative_difference(mirror_upper(in_blocks), whole) <= 1e-15
    assert dim % 64 or torch.equal(mirror_upper(in_blocks), whole)
