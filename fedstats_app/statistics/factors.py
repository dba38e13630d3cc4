"""Square roots of Gram matrices and of clients' scatter: the same matrix in fewer numbers."""

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
        check_tensor("trapezoid", self.trapezoid, (None, None), torch.float64)
        if len(self.trapezoid) > self.trapezoid.shape[1]:
            raise ValueError(f"trapezoid must have no more rows than columns, got {tuple(self.trapezoid.shape)}")

    @classmethod
    def of(cls, features: Tensor) -> GramFactor:
        """Return the factor of the Gram matrix of (n, d) float64 features, n < d, on the CPU; never forms d x d.

        With X = U diag(s) V^T it is the triangular factor of diag(s) V^T, of which the s above rounding are kept. U is
        taken from X X^T: U^T X has the Gram matrix of X to rounding however close the s are.
        """
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


# What an array of few axes has on the wire before its values.
HEADER_BYTES = 128
# From the type of directions on the wire to the bytes of a number.
FACTOR_BYTES = {"float32": 4.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}
FACTOR_DTYPES = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class ScatterSpec:
    """How much of its scatter a client sends.

    Attributes
    ----------
    rank : RankRule
        How many directions.
    dtype : {"float32", "float16", "int8", "int4"}
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
        return rank * (4 + math.ceil(FACTOR_BYTES[self.dtype] * dim)) + 8 + 3 * HEADER_BYTES


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
        possible, dim = full_rank(rows), rows.feature_dim
        if not possible:
            return cls(features.new_zeros(0), features.new_zeros(0, dim))
        centred = features - rows.means[row_of_sample]
        with one_thread():
            squares, vectors = _falling(centred @ centred.T)
            # What is left of equal features is the rounding of their mean.
            noise = (len(centred) * torch.finfo(torch.float64).eps) ** 2 * float(features.square().sum())
            rank = min(_numerical_rank(squares, noise), possible)
            kept = rank if most is None else min(rank, most)
            # Z^T U is s V^T, the falling directions first: what rounding puts of one into the next, QR takes out.
            directions, triangle = torch.linalg.qr(centred.T @ vectors[:, :kept])
            directions *= triangle.diagonal().sign()
        left_out = float(squares[kept:rank].sum())
        return cls(squares[:kept].sqrt(), directions.T.contiguous(), left_out)

    @classmethod
    def of_gram(cls, gram: Tensor | GramFactor, rows: ClassMeanRows) -> ScatterFactor:
        """Return the complete factor from the Gram matrix of the samples, or its factor, and their rows."""
        with one_thread():
            if isinstance(gram, GramFactor):
                # The scatter lies in the span of the Gram matrix: never d x d.
                basis, triangle = torch.linalg.qr(gram.trapezoid.T)
                inside, small = rows.scaled_sums @ basis, triangle @ triangle.T
            else:
                basis, inside, small = None, rows.scaled_sums, gram
            noise = len(small) * torch.finfo(torch.float64).eps * float(small.trace())
            squares, vectors = _falling(small - inside.T @ inside)
            rank = min(_numerical_rank(squares, noise), full_rank(rows))
            directions = vectors[:, :rank] if basis is None else basis @ vectors[:, :rank]
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
        if isinstance(dtype, torch.dtype):
            directions = directions.to(dtype)
        else:
            directions = unit_rows(direction_codes(directions, dtype))
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
