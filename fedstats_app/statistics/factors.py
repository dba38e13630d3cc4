"""Square roots of a client's scatter about its class means: the same matrix in fewer numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedstats_app.base.rank_rule import RankRule
from fedstats_app.base.threads import one_thread
from fedstats_app.statistics.accumulation import check_tensor, mirror_upper
from fedstats_app.statistics.class_mean_rows import ClassMeanRows
from fedstats_app.statistics.quantisation import direction_codes, unit_rows

# Of the trace: what keeps a singular matrix's factor real, a thousandth of what half precision rounds.
_LIFT = 1e-9


def num_factor_numbers(rank: int, dim: int) -> int:
    """Return how many numbers an upper trapezoid (rank, dim) has; below rank = dim fewer than the triangle of G."""
    return rank * dim - rank * (rank - 1) // 2


@dataclass(frozen=True, eq=False)
class TriangularFactor:
    """R with R^T R = Z^T Z, the complete scatter about the means of the rows, in the fewest numbers.

    R is a function of the scatter alone, to rounding, where no feature depends linearly on those before it, but for
    features that are constant within every row, which are stepped over. (A QR of Z would not be: with a first feature
    of zero its first row is a sample's.)

    Attributes
    ----------
    trapezoid : Tensor
        (r, d) float64, r <= d: zero left of the diagonal, and the first entry of a row that is not zero is positive.
    """

    trapezoid: Tensor

    def __post_init__(self) -> None:
        check_tensor("trapezoid", self.trapezoid, (None, None), torch.float64)
        if len(self.trapezoid) > self.trapezoid.shape[1]:
            raise ValueError(f"trapezoid must have no more rows than columns, got {tuple(self.trapezoid.shape)}")

    @classmethod
    def of_features(cls, features: Tensor, rows: ClassMeanRows, row_of_sample: Tensor) -> TriangularFactor:
        """Return the factor of (n, d) float64 features on the CPU, n < d, as :meth:`ScatterFactor.of_features`.

        With Z = U diag(s) V^T it is the triangular factor of diag(s) V^T, of which the s above rounding are kept. U is
        taken from Z Z^T: U^T Z has the scatter of Z to rounding however close the s are.
        """
        if not full_rank(rows):
            return cls(features.new_zeros(0, rows.feature_dim))
        with one_thread():
            centred, _, vectors = _spectrum(features, rows, row_of_sample)
            return cls(_triangular(vectors.T @ centred))

    @classmethod
    def of_scatter(cls, scatter: Tensor, rows: ClassMeanRows) -> TriangularFactor:
        """Return the factor of a (d, d) float64 scatter about the means of the rows, made larger by rounding.

        The scatter may have been the difference of a Gram matrix and what the means have of it, in float64.
        """
        trace = float(scatter.trace())
        noise = len(scatter) * torch.finfo(torch.float64).eps * float(rows.scaled_sums.square().sum())
        if trace <= noise:
            return cls(scatter.new_zeros(0, len(scatter)))
        lifted = scatter.clone()
        lifted.diagonal().add_(_LIFT * trace + noise)
        with one_thread():
            return cls(torch.linalg.cholesky(lifted, upper=True))

    def scatter(self) -> Tensor:
        """Return R^T R, (d, d) float64, symmetric to the bit."""
        return mirror_upper(self.trapezoid.T @ self.trapezoid)

    def joined(self, rows: Tensor) -> TriangularFactor:
        """Return the factor of R^T R and the scatter of further rows (m, d) together."""
        with one_thread():
            return TriangularFactor(_triangular(torch.cat([self.trapezoid, rows])))

    def packed(self) -> Tensor:
        """Return the rows from the diagonal on, one behind the other: (r d - r (r - 1) / 2,)."""
        row, column = torch.triu_indices(*self.trapezoid.shape)
        return self.trapezoid[row, column]

    @classmethod
    def unpacked(cls, packed: Tensor, dim: int) -> TriangularFactor:
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


def _spectrum(features: Tensor, rows: ClassMeanRows, row_of_sample: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Z (n, d), features about the means of their rows, and the squares (r,) and vectors (n, r) of Z Z^T.

    Only what is more than rounding, falling.
    """
    centred = features - rows.means[row_of_sample]
    # What is left of equal numbers is the rounding of their mean.
    noise = (len(centred) * torch.finfo(torch.float64).eps) ** 2 * features.square().sum(dim=0)
    centred[:, centred.square().sum(dim=0) <= noise] = 0.0
    squares, vectors = _falling(centred @ centred.T)
    rank = min(_numerical_rank(squares, float(noise.sum())), full_rank(rows))
    return centred, squares[:rank], vectors[:, :rank]


def _triangular(rows: Tensor) -> Tensor:
    # A feature that is zero in every sample stays exactly zero in the factor, and takes none of its rows.
    live = (rows != 0).any(dim=0)
    triangle = torch.linalg.qr(rows[:, live], mode="r").R
    trapezoid = rows.new_zeros(len(triangle), rows.shape[1])
    trapezoid[:, live] = triangle
    trapezoid = trapezoid[(trapezoid != 0).any(dim=1)]
    first = (trapezoid != 0).to(torch.int8).argmax(dim=1, keepdim=True)
    return trapezoid * trapezoid.gather(1, first).sign()


# What an array of few axes has on the wire before its values.
HEADER_BYTES = 128
# From the type of directions on the wire to the bytes of a number.
FACTOR_BYTES = {"float32": 4, "float16": 2, "int8": 1}
FACTOR_DTYPES = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class ScatterSpec:
    """Part of its scatter that a client sends.

    Attributes
    ----------
    rank : RankRule
        How many directions.
    dtype : {"float32", "float16", "int8"}
        Of the directions, which have length 1 (integers are given it again when they are read); their singular values
        are float32.
    """

    rank: RankRule
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in FACTOR_BYTES:
            raise ValueError(f"the dtype of a factor must be one of {', '.join(FACTOR_BYTES)}, got {self.dtype!r}")

    def num_bytes(self, rank: int, dim: int) -> int:
        """Return the bytes of a factor of this rank in ``dim`` dimensions: values, directions and what is left out."""
        return rank * (4 + FACTOR_BYTES[self.dtype] * dim) + 8 + 3 * HEADER_BYTES


@dataclass(frozen=True, eq=False)
class ScatterFactor:
    """F = diag(s) V^T and rho, of the scatter Z^T Z = sum_i (f_i - mu_i)(f_i - mu_i)^T about the means of the rows.

    F^T F is the scatter where the factor is complete, and else its best approximation of the rank; rho is the energy
    (trace) that is left out.

    Attributes
    ----------
    values : Tensor
        (k,) floating point, s: positive, falling.
    directions : Tensor
        (k, d) floating point, V^T: orthonormal rows, to the rounding of their dtype.
    left_out : float
        rho, at least 0.
    """

    values: Tensor
    directions: Tensor
    left_out: float = 0.0

    @classmethod
    def of_features(
        cls, features: Tensor, rows: ClassMeanRows, row_of_sample: Tensor, most: int | None = None
    ) -> ScatterFactor:
        """Return the factor of (n, d) float64 features, by the side of the samples: for n < d.

        Parameters
        ----------
        features : Tensor
            On the CPU.
        rows : ClassMeanRows
            Of these samples.
        row_of_sample : Tensor
            (n,) int64.
        most : int, optional
            Directions that will be wanted: no more are made, and the energy of the others is left out. By default all.
        """
        if not full_rank(rows):
            return cls(features.new_zeros(0), features.new_zeros(0, rows.feature_dim))
        with one_thread():
            centred, squares, vectors = _spectrum(features, rows, row_of_sample)
            kept = len(squares) if most is None else min(len(squares), most)
            # Z^T U is s V^T, the falling directions first: what rounding puts of one into the next, QR takes out.
            directions, triangle = torch.linalg.qr(centred.T @ vectors[:, :kept])
            directions *= triangle.diagonal().sign()
        left_out = float(squares[kept:].sum())
        return cls(squares[:kept].sqrt(), directions.T.contiguous(), left_out)

    @classmethod
    def of_scatter(cls, scatter: Tensor | TriangularFactor, rows: ClassMeanRows) -> ScatterFactor:
        """Return the complete factor from the scatter about the means of the rows, or its triangular factor."""
        with one_thread():
            small = scatter.trapezoid @ scatter.trapezoid.T if isinstance(scatter, TriangularFactor) else scatter
            squares, vectors = _falling(small)
            energy = float(small.trace()) + float(rows.scaled_sums.square().sum())
            noise = len(small) * torch.finfo(torch.float64).eps * energy
            rank = min(_numerical_rank(squares, noise), full_rank(rows))
            directions = vectors[:, :rank]
            if isinstance(scatter, TriangularFactor):
                directions, triangle = torch.linalg.qr(scatter.trapezoid.T @ directions)
                directions *= triangle.diagonal().sign()
        return cls(squares[:rank].sqrt(), directions.T.contiguous())

    def __len__(self) -> int:
        """Return the rank k."""
        return len(self.values)

    @property
    def energies(self) -> list[float]:
        """The squares of the values, falling."""
        squares: list[float] = self.values.to(torch.float64).square().tolist()
        return squares

    def cut(self, rank: int) -> ScatterFactor:
        """Return the factor of the ``rank`` largest values at most; the energy of the others is left out."""
        left_out = self.left_out + math.fsum(self.energies[rank:])
        return ScatterFactor(self.values[:rank], self.directions[:rank], left_out)

    def truncated(self, rank: int, dtype: torch.dtype | str) -> ScatterFactor:
        """Return the factor of the ``rank`` largest values as it is sent: values in float32, directions in ``dtype``.

        Directions of integers are those that the server reads, in float32.

        All that is kept no more is left out, the rounding included, so that the trace stays; nothing where all is kept.
        """
        directions = self.directions[:rank]
        directions = directions.to(dtype) if isinstance(dtype, torch.dtype) else unit_rows(direction_codes(directions))
        kept = ScatterFactor(self.values[:rank].to(torch.float32), directions)
        if rank >= len(self) and not self.left_out:
            return kept
        energy = sum(self.energies) + self.left_out
        return ScatterFactor(kept.values, kept.directions, max(energy - float(kept.scaled().square().sum()), 0.0))

    def scaled(self) -> Tensor:
        """Return F, (k, d) float64."""
        return self.values.to(torch.float64).unsqueeze(1) * self.directions.to(torch.float64)


@dataclass(frozen=True, eq=False)
class LowRankStatistics:
    """All rows, and the sums of the factors of the clients' scatter: what FedRoot is solved from.

    Attributes
    ----------
    rows : ClassMeanRows
        Of all clients, in their order.
    scatter : Tensor
        (d, d) float64, sum of F^T F.
    left_out : float
        Sum of the energies left out.
    """

    rows: ClassMeanRows
    scatter: Tensor
    left_out: float


def _falling(scatter: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (r,) and eigenvectors (r, r), a column each, the largest first."""
    squares, vectors = torch.linalg.eigh(scatter)
    return squares.flip(0), vectors.flip(1)


def _numerical_rank(squares: Tensor, noise: float) -> int:
    """Return how many falling eigenvalues are more than rounding."""
    largest = float(squares[0]) if len(squares) else 0.0
    return int((squares > max(noise, len(squares) * torch.finfo(torch.float64).eps * largest)).sum())


def full_rank(rows: ClassMeanRows) -> int:
    """Return the largest rank that the scatter of the samples of these rows can have."""
    return min(int(rows.num_examples) - len(rows), rows.feature_dim)
