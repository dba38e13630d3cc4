"""Linear classifier heads, the systems that they solve, and the report of a solve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.statistics.accumulation import check_tensor, normalize_rows

# Numpy in, numpy out.
Values = TypeVar("Values", Tensor, NDArray[Any])


@dataclass(frozen=True)
class SolveReport:
    """Report of a solver: the regulariser it used and how well posed the system was.

    Attributes
    ----------
    regulariser : str
        In words, for a table: "lambda 12.3 (auto)".
    parameters : dict
        The numbers used, by name (``ridge_lambda``, ``shrinkage``).
    ridge_effective : float or None
        Sum added to the diagonal of the Gram-like matrix, None if there is no system. Infinite for FedCOF's limit,
        which is FedNCM.
    condition_number : float or None
        Estimate for the matrix that was solved, from power iteration (a lower bound, close in practice).
    rank : int or None
        Numerical rank if a pseudo-inverse had to be used, else None.
    notes : tuple of str
        Notes for the user: a fallback, a limit.
    deviations : tuple of float
        Of numbers about their predictions, one for each.
    """

    regulariser: str = "none"
    parameters: dict[str, float] = field(default_factory=dict)
    ridge_effective: float | None = None
    condition_number: float | None = None
    rank: int | None = None
    notes: tuple[str, ...] = ()
    deviations: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class LinearHead:
    """logits = features @ weight.T + bias.

    Attributes
    ----------
    weight : Tensor
        (C, d); the row of an absent class is zero.
    bias : Tensor
        (C,).
    present : Tensor
        (C,) bool, classes that had samples. By default all.
    report : SolveReport
        How the head was solved.

    Raises
    ------
    ValueError
        If shapes disagree, or a weight or the bias of a present class is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> head = LinearHead(torch.eye(2), torch.zeros(2))
    >>> head.predict(np.array([[0.1, 0.9], [0.8, 0.2]]))
    array([1, 0])
    """

    weight: Tensor
    bias: Tensor
    present: Tensor = field(default=None)  # type: ignore[assignment]  # filled in by __post_init__
    report: SolveReport = field(default_factory=SolveReport)

    def __repr__(self) -> str:
        return f"<LinearHead of {self.num_classes} classes on {self.feature_dim} features, {self.report.regulariser}>"

    def __post_init__(self) -> None:
        check_tensor("weight", self.weight, (None, None), self.weight.dtype)
        check_tensor("bias", self.bias, (len(self.weight),), self.bias.dtype)
        if self.present is None:
            object.__setattr__(self, "present", torch.ones(len(self.bias), dtype=torch.bool, device=self.bias.device))
        check_tensor("present", self.present, (len(self.bias),), torch.bool)
        if not bool(torch.isfinite(self.weight).all()) or not bool(torch.isfinite(self.bias[self.present]).all()):
            raise ValueError("a head must be finite, got NaN or infinity in the weight or the bias of a present class")

    @property
    def num_classes(self) -> int:
        """Number of classes C, absent ones included."""
        return int(self.weight.shape[0])

    @property
    def feature_dim(self) -> int:
        """Feature dimension d."""
        return int(self.weight.shape[1])

    def logits(self, features: Values, *, mask_absent: bool = True) -> Values:
        """Return (n, C) logits in the weight's dtype.

        Parameters
        ----------
        features : Tensor or ndarray
            (n, d), a tensor on the head's device. Logits of an array are one, too.
        mask_absent : bool
            Give absent classes -inf. With False they keep their zero row, as in the papers' code, and can beat the
            negative logit of a real class.

        Raises
        ------
        ValueError
            If the features' shape is not (n, d).
        """
        if not isinstance(features, Tensor):
            given = torch.as_tensor(features, device=self.weight.device)
            return self.logits(given, mask_absent=mask_absent).cpu().numpy()
        check_tensor("features", features, (None, self.feature_dim), features.dtype)
        logits = features.to(self.weight.dtype) @ self.weight.T + self.bias
        return self.masked(logits) if mask_absent else logits

    @classmethod
    def of_rows(cls, weight: Tensor, present: Tensor, report: SolveReport | None = None) -> LinearHead:
        """Return the head of (C, d) class weights scaled to rows of length 1, except zero rows, without bias."""
        unit, _ = normalize_rows(weight)
        return cls(unit.contiguous(), torch.zeros_like(unit[:, 0]), present, report or SolveReport())

    def masked(self, logits: Tensor) -> Tensor:
        """Return (n, C) logits with -inf for absent classes; the same tensor if there are none."""
        return logits if bool(self.present.all()) else logits.masked_fill(~self.present, -torch.inf)

    def predict(self, features: Values, *, mask_absent: bool = True) -> Values:
        """Return (n,) int64 class ids, the largest logit's; arguments as of :meth:`logits`."""
        labels: Values = self.logits(features, mask_absent=mask_absent).argmax(1)
        return labels

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> LinearHead:
        """Return the head in another dtype or on another device."""
        device = device if device is not None else self.weight.device
        return LinearHead(
            self.weight.to(device=device, dtype=dtype),
            self.bias.to(device=device, dtype=dtype),
            self.present.to(device),
            self.report,
        )


# Enough for the extreme eigenvalues to a few per cent; each step costs one product (or solve) of d^2.
POWER_ITERATIONS = 30


@dataclass(frozen=True)
class Solution:
    """Solution of a system, with condition and rank of its matrix.

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

    def report(
        self, regulariser: str, ridge_effective: float, *, notes: tuple[str, ...] = (), **parameters: float
    ) -> SolveReport:
        """Make the report of a head.

        Parameters
        ----------
        regulariser : str
            In words.
        ridge_effective : float
            Sum added to the diagonal.
        notes : tuple of str
            Further notes.
        **parameters
            The method's own, as they were used.
        """
        if self.rank is not None:
            notes = (f"singular system: pseudo-inverse of rank {self.rank} of {len(self.x)}", *notes)
        return SolveReport(regulariser, parameters, ridge_effective, self.condition_number, self.rank, notes)


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
