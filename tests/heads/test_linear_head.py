"""Linear heads, and the systems that they solve."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.heads import LinearHead
from fedstats_app.heads.linear_head import solve_positive_definite
from fedstats_app.statistics.accumulation import normalize_rows
from tests.support.compare import relative_difference

HEAD = LinearHead(
    torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]),
    torch.tensor([0.0, 0.0, -0.5]),
    torch.tensor([True, False, True]),
)


def test_an_absent_class_never_wins_unless_asked_for() -> None:
    negative = torch.tensor([[-1.0, -3.0]])  # both classes present have negative logits
    assert HEAD.logits(negative).tolist() == [[-1.0, -torch.inf, -2.5]]
    assert HEAD.predict(negative).tolist() == [0] and HEAD.predict(negative, mask_absent=False).tolist() == [1]


def test_arrays_of_numpy_give_arrays_of_numpy() -> None:
    features = np.array([[-1.0, -3.0]])
    logits, labels = HEAD.logits(features), HEAD.predict(features)
    assert isinstance(logits, np.ndarray) and logits.tolist() == [[-1.0, -np.inf, -2.5]]
    assert isinstance(labels, np.ndarray) and labels.tolist() == [0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearHead(torch.ones(3), torch.ones(3)), r"weight must be \(any, any\) float32, got \(3,\)"),
        (lambda: LinearHead(torch.ones(3, 2), torch.ones(2)), r"bias must be \(3\) float32, got \(2,\)"),
        (lambda: LinearHead(torch.full((1, 2), torch.nan), torch.ones(1)), r"a head must be finite"),
        (lambda: LinearHead(torch.ones(1, 2), torch.tensor([torch.inf])), r"a head must be finite"),
        (lambda: HEAD.predict(torch.ones(4, 3)), r"features must be \(any, 2\) float32, got \(4, 3\)"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@given(exponent=st.integers(-150, 150), seed=st.integers(0, 2**32 - 1))
def test_rows_of_any_size_become_unit_rows(exponent: int, seed: int) -> None:
    weight = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight[1] = 0.0
    unit, norm = normalize_rows(weight * 10.0**exponent)
    assert unit[1].tolist() == [0.0] * 5 and norm[1] == 1.0
    assert torch.linalg.vector_norm(unit[[0, 2]], dim=1).tolist() == pytest.approx([1.0, 1.0], rel=1e-12)
    assert norm[0] == pytest.approx(float(torch.linalg.vector_norm(weight[0])) * 10.0**exponent, rel=1e-12)


def _with_eigenvalues(eigenvalues: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dim = len(eigenvalues)
    vectors, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    matrix = (vectors * eigenvalues) @ vectors.T
    return (matrix + matrix.T) / 2


@given(dim=st.integers(1, 20), decades=st.integers(0, 8), seed=st.integers(0, 2**32 - 1))
def test_a_regular_system_is_solved_by_cholesky(dim: int, decades: int, seed: int) -> None:
    eigenvalues = torch.logspace(0, -decades, dim, dtype=torch.float64)
    matrix = _with_eigenvalues(eigenvalues, seed)
    x = torch.randn(dim, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    solution = solve_positive_definite(matrix, matrix @ x)
    assert solution.rank is None and solution.report("", 0.0).notes == ()
    assert relative_difference(solution.x, x) <= 1e-13 * 10**decades
    true = float(eigenvalues[0] / eigenvalues[-1])
    assert 0.8 * true <= solution.condition_number <= true * (1 + 1e-6 * true)


@pytest.mark.parametrize("rank", [0, 1, 5, 9])
def test_a_singular_system_gives_the_solution_of_least_norm_and_its_rank(rank: int) -> None:
    eigenvalues = torch.tensor([float(2 + i) for i in range(rank)] + [0.0] * (10 - rank), dtype=torch.float64)
    matrix = _with_eigenvalues(eigenvalues)
    rhs = matrix @ torch.ones(10, 2, dtype=torch.float64)
    solution = solve_positive_definite(matrix, rhs)
    assert solution.rank == rank and f"rank {rank} of 10" in solution.report("", 0.0).notes[0]
    assert bool(torch.isfinite(solution.x).all())
    assert relative_difference(solution.x, torch.linalg.pinv(matrix, hermitian=True) @ rhs) <= 1e-10


@pytest.mark.parametrize("smallest", [-1e-17, 1e-17])
def test_a_matrix_that_is_regular_or_indefinite_by_rounding_alone_is_singular(smallest: float) -> None:
    matrix = _with_eigenvalues(torch.tensor([3.0, 1.0, smallest], dtype=torch.float64))
    solution = solve_positive_definite(matrix, torch.ones(3, 1, dtype=torch.float64))
    assert solution.rank == 2 and float(solution.x.abs().max()) < 10


def test_eigenvalues_below_the_rounding_of_a_difference_are_dropped() -> None:
    matrix = torch.diag(torch.tensor([1.0, 1e-9], dtype=torch.float64))
    rhs = torch.ones(2, 1, dtype=torch.float64)
    assert solve_positive_definite(matrix, rhs).rank is None
    difference_of_large = solve_positive_definite(matrix, rhs, magnitude=1e8)
    assert difference_of_large.rank == 1 and difference_of_large.x.tolist() == [[1.0], [0.0]]


def test_the_same_system_gives_the_same_bits_whatever_the_random_state() -> None:
    matrix, rhs = _with_eigenvalues(torch.arange(1.0, 9.0, dtype=torch.float64)), torch.ones(8, 1, dtype=torch.float64)
    torch.manual_seed(1)
    first = solve_positive_definite(matrix, rhs)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    second = solve_positive_definite(matrix, rhs)
    assert torch.equal(first.x, second.x) and first.condition_number == second.condition_number
    assert torch.equal(torch.random.get_rng_state(), state)  # and takes no number from the caller's generator
