"""A look at the linear system that a solver sets up: heads are normalised, so they hide its scale."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from torch import Tensor

from fedstats_app.heads import fedcof, gaussian, ridge
from fedstats_app.heads.linear_head import Solution, solve_positive_definite


class System(NamedTuple):
    """matrix @ x = rhs, and its solution x."""

    matrix: Tensor
    rhs: Tensor
    x: Tensor


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[System]]:
    """Collect the systems that solvers pass on, in order; they are solved as always."""
    systems: list[System] = []

    def solve(matrix: Tensor, rhs: Tensor, **options: Any) -> Solution:
        solution = solve_positive_definite(matrix, rhs, **options)
        systems.append(System(matrix, rhs, solution.x))
        return solution

    for module in (fedcof, gaussian, ridge):
        monkeypatch.setattr(module, "solve_positive_definite", solve)
    yield systems
