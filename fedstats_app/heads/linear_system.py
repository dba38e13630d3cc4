"""Symmetric positive (semi-)definite systems: Cholesky, and a documented fallback where the matrix is singular."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.heads.linear_head import SolveReport

# Enough for the extreme eigenvalues to a few per cent; each step costs one product (or solve) of d^2.
POWER_ITERATIONS = 30
# Where the ratio of pivots is as small as this, the matrix is looked at more closely.
_DOUBTFUL = 1e-9


@dataclass(frozen=True)
class Solution:
    """Solution of a system, and what is known of its matrix.

    Attributes
    ----------
    x : Tensor
        (d, C).
    condition_number : float
        Estimate of the ratio of extreme eigenvalues (of those kept, in the fallback).
    rank : int or None
        None after a Cholesky solve; the numerical rank after the fallback.
    """

    x: Tensor
    condition_number: float
    rank: int | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What to tell the user: empty after a Cholesky solve."""
        if self.rank is None:
            return ()
        return (f"singular system: pseudo-inverse of rank {self.rank} of {len(self.x)}",)

    def report(
        self, regulariser: str, ridge_effective: float, *, notes: tuple[str, ...] = (), **parameters: float
    ) -> SolveReport:
        """Return what the user is told of a head that came of this.

        Parameters
        ----------
        regulariser : str
            In words.
        ridge_effective : float
            What was added to the diagonal.
        notes : tuple of str
            What else to tell.
        **parameters
            The method's own, as they were used.
        """
        return SolveReport(
            regulariser, parameters, ridge_effective, self.condition_number, rank=self.rank, notes=(*self.notes, *notes)
        )


def solve_positive_definite(matrix: Tensor, rhs: Tensor, *, magnitude: float = 0.0) -> Solution:
    """Solve ``matrix @ x = rhs`` by Cholesky; by an eigenvalue pseudo-inverse where the matrix is singular.

    Parameters
    ----------
    matrix : Tensor
        (d, d) float64, symmetric, positive semi-definite up to rounding.
    rhs : Tensor
        (d, C) float64.
    magnitude : float
        Largest entry of the matrices whose difference ``matrix`` is; 0 where it is no difference.

    Notes
    -----
    Eigenvalues below d eps times the largest one, or times ``magnitude`` if that is larger, are rounding (a constant
    feature leaves such a "variance"). The fallback is taken when the factorisation fails or the smallest eigenvalue is
    rounding; it drops such eigenvalues and gives the solution of least norm.
    """
    resolution = len(matrix) * torch.finfo(matrix.dtype).eps
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) == 0:
        largest, smallest = _extreme_eigenvalues(matrix, factor)
        if smallest > resolution * max(largest, magnitude):
            return Solution(torch.cholesky_solve(rhs, factor), largest / smallest)
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    largest = float(eigenvalues[-1].clamp(min=0.0))
    kept = eigenvalues > resolution * max(largest, magnitude)
    rank = int(kept.sum())
    if rank == 0:
        return Solution(torch.zeros_like(rhs), 1.0, 0)
    eigenvalues, vectors = eigenvalues[kept], vectors[:, kept]
    x = vectors @ ((vectors.T @ rhs) / eigenvalues.unsqueeze(1))
    return Solution(x, largest / float(eigenvalues[0]), rank)


def solve_shifted(matrix: Tensor, value: float, rhs: Tensor) -> Tensor | None:
    """Solve ``(matrix + value * I) @ x = rhs`` by Cholesky alone, without an estimate of the condition number.

    Returns
    -------
    Tensor or None
        (d, C), to the bit that of :func:`solve_positive_definite`; None where the matrix may be singular: the smallest
        pivot bounds the smallest eigenvalue from above.
    """
    factor, info = torch.linalg.cholesky_ex(add_to_diagonal(matrix, value))
    pivots = factor.diagonal().square()
    if int(info) != 0 or float(pivots.amin()) <= _DOUBTFUL * float(pivots.amax()):
        return None
    return torch.cholesky_solve(rhs, factor)


def _extreme_eigenvalues(matrix: Tensor, factor: Tensor) -> tuple[float, float]:
    """Estimate the largest and smallest by power iteration on the matrix and, through its factor, on the inverse."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(len(matrix), 1, generator=generator, dtype=matrix.dtype).to(matrix.device)
    largest, vector = 0.0, start
    for _ in range(POWER_ITERATIONS):
        vector = matrix @ (vector / torch.linalg.vector_norm(vector))
        largest = float(torch.linalg.vector_norm(vector))
    inverse_smallest, vector = 0.0, start
    for _ in range(POWER_ITERATIONS):
        vector = vector / torch.linalg.vector_norm(vector)
        # The bits of torch.cholesky_solve, which copies the whole factor at every step: ten times as long.
        vector = torch.linalg.solve_triangular(factor, vector, upper=False)
        vector = torch.linalg.solve_triangular(factor.mT, vector, upper=True)
        inverse_smallest = float(torch.linalg.vector_norm(vector))
    return largest, 1.0 / inverse_smallest


def add_to_diagonal(matrix: Tensor, value: float) -> Tensor:
    """Return ``matrix + value * I`` as a new matrix."""
    shifted = matrix.clone()
    shifted.diagonal().add_(value)
    return shifted
