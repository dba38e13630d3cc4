"""The triangular factor of a Gram matrix of few samples: all that the matrix says, in fewer numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.statistics.accumulation import mirror_upper
from fedstats_app.threads import one_thread

# Of the trace: what keeps a singular matrix's factor real, a thousandth of what half precision rounds.
_LIFT = 1e-9


def num_factor_numbers(rank: int, dim: int) -> int:
    """Return how many numbers an upper trapezoid (rank, dim) has; below rank = dim fewer than the triangle of G."""
    return rank * dim - rank * (rank - 1) // 2


@dataclass(frozen=True, eq=False)
class GramFactor:
    """R with R^T R = G, for the Gram matrix G of fewer samples than features, or of any where few bits are sent.

    R is a function of G alone, to rounding, where no feature depends linearly on those before it, but for features
    that are zero in every sample, which are stepped over. (A QR of the features would not be: with a first feature of
    zero its first row is a sample.)

    Attributes
    ----------
    trapezoid : Tensor
        (r, d) float64, r <= d: zero left of the diagonal, and the first entry of a row that is not zero is positive.
    """

    trapezoid: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.trapezoid.shape)
        if len(shape) != 2 or shape[0] > shape[1] or self.trapezoid.dtype != torch.float64:
            raise ValueError(f"trapezoid must be (r, d) float64 with r <= d, got {shape} {self.trapezoid.dtype}")

    @classmethod
    def of(cls, features: Tensor) -> GramFactor:
        """Return the factor of the Gram matrix of (n, d) float64 features, n < d, on the CPU; never forms d x d.

        With X = U diag(s) V^T it is the triangular factor of diag(s) V^T, of which the s above rounding are kept. U is
        taken from X X^T: U^T X has the Gram matrix of X to rounding however close the s are.

        Raises
        ------
        ValueError
            If there are not fewer samples than features.
        """
        if features.ndim != 2 or len(features) >= features.shape[1]:
            raise ValueError(f"features must be (n, d) with n < d, got {tuple(features.shape)}")
        features = features.to("cpu", torch.float64)
        # Squares of what is large would overflow, and those of what is small vanish.
        scale = float(features.abs().max()) if features.numel() else 0.0
        trapezoid = features.new_zeros(0, features.shape[1])
        if scale > 0.0:
            with one_thread():
                trapezoid = scale * _triangular(_rotated(features / scale))
        return cls(trapezoid)

    @classmethod
    def of_gram(cls, gram: Tensor) -> GramFactor:
        """Return the factor of a (d, d) float64 Gram matrix, or of one that is larger by no more than rounding."""
        trace = float(gram.trace())
        if trace <= 0.0:
            return cls(gram.new_zeros(0, len(gram)))
        lifted = gram.clone()
        lifted.diagonal().add_(_LIFT * trace)
        with one_thread():
            return cls(torch.linalg.cholesky(lifted, upper=True))

    def gram(self) -> Tensor:
        """Return G = R^T R, (d, d) float64, symmetric to the bit."""
        return mirror_upper(self.trapezoid.T @ self.trapezoid)

    def packed(self) -> Tensor:
        """Return the rows from the diagonal on, one behind the other: (r d - r (r - 1) / 2,)."""
        row, column = torch.triu_indices(*self.trapezoid.shape)
        return self.trapezoid[row, column]

    @classmethod
    def unpacked(cls, packed: Tensor, dim: int) -> GramFactor:
        """Return the factor that :meth:`packed` gave, in any floating dtype; its length says the rank.

        Raises
        ------
        ValueError
            If no rank up to ``dim`` has that length, or the diagonal has negative entries.
        """
        half = dim + 0.5
        rank = round(half - math.sqrt(max(half**2 - 2.0 * len(packed), 0.0)))
        if not 0 <= rank <= dim or num_factor_numbers(rank, dim) != len(packed):
            raise ValueError(f"a factor for {dim} features has no {len(packed)} numbers")
        trapezoid = torch.zeros(rank, dim, dtype=torch.float64)
        row, column = torch.triu_indices(rank, dim)
        trapezoid[row, column] = packed.to(torch.float64)
        if bool((trapezoid.diagonal() < 0).any()):
            raise ValueError(f"the diagonal of a factor must not be negative, got {float(trapezoid.diagonal().min())}")
        return cls(trapezoid)


def _rotated(features: Tensor) -> Tensor:
    """Return diag(s) V^T of the features, (r, d), for the s above rounding."""
    squares, left = torch.linalg.eigh(features @ features.T)
    kept = squares > features.shape[1] * torch.finfo(torch.float64).eps * squares[-1]
    rotated: Tensor = left.T[kept].flip(0) @ features
    return rotated


def _triangular(rows: Tensor) -> Tensor:
    # A feature that is zero in every sample stays exactly zero in the factor, and takes none of its rows.
    live = (rows != 0).any(dim=0)
    triangle = torch.linalg.qr(rows[:, live], mode="r").R
    trapezoid = torch.zeros_like(rows)
    trapezoid[: len(triangle), live] = triangle
    trapezoid = trapezoid[(trapezoid != 0).any(dim=1)]
    first = (trapezoid != 0).to(torch.int8).argmax(dim=1, keepdim=True)
    return trapezoid * trapezoid.gather(1, first).sign()
