"""Statistics as unsigned words whose sum, which wraps around, is that of the statistics: what is masked.

Sums follow one another. ``presence``: which classes a client has. ``sums``: counts and class sums, exact, with the
whole Gram matrix or its diagonal. ``spread``, for FedCOF: that of the client's class means about those that all know by
then, weighted by class. ``scatter``: the triangle beside that diagonal, of the scatter about class means
that all know by then. No entry of a scatter is larger than the root of the product of two of its diagonal, so that 16
bits are enough: 2^14 steps for the entry, and as much for the rounding of half a step by each of 1,000 clients. In its
place ``product1`` and so on: the scatter times a direction per class, in 32 bits, from which it is approximated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.statistics.accumulation import mirror_upper, pack_upper, unpack_upper
from fedstats_app.statistics.exact import fraction_bits
from fedstats_app.statistics.feature_statistics import FeatureStatistics

Product = Literal["product1", "product2", "product3"]
PRODUCTS: tuple[Product, ...] = ("product1", "product2", "product3")
Kind = Literal["presence", "sums", "scatter", "spread", Product]
Gram = Literal["none", "triangle", "exact", "means-1", "means-2", "means-3"]
Unsigned = np.dtype[np.unsignedinteger]
Words = list[NDArray[np.unsignedinteger]]

_NARROW, _WIDE = np.dtype(np.uint32), np.dtype(np.uint64)
# Above so many clients half a step of each would take too much of 16 bits.
MOST_IN_16_BITS = 1000
# So many bits of fraction are worth half the bytes.
_NARROW_BITS = 8
# Below this share of the largest, an eigenvalue is rounding.
_LEAST_SHARE = 1e-8
# Of the mean variance, added to each feature's; 0.03 to 0.3 give heads alike.
_DAMPING = 0.1


@dataclass(frozen=True)
class SecureLayout:
    """In which words statistics travel: the same for all clients of a run.

    Attributes
    ----------
    num_classes, feature_dim : int
        C and d, of the mapped features.
    bits : int
        Of fraction of the features.
    narrow : bool
        Whether class sums fit 32 bits.
    gram : {"none", "triangle", "exact", "means-1", "means-2", "means-3"}
        What is summed of the Gram matrix: nothing, the triangle of the scatter in 16 bits, all in 64 bits, or so many
        products of the scatter.
    parties : int
        Clients at most.
    spread : bool
        Whether the spread of clients' class means is summed too.
    """

    num_classes: int
    feature_dim: int
    bits: int
    narrow: bool
    gram: Gram
    parties: int
    spread: bool = False

    @classmethod
    def of(
        cls, num_classes: int, feature_dim: int, gram: Gram, parties: int, samples: int, norm: float
    ) -> SecureLayout:
        """Choose the words in which no sum of so many samples, of features up to ``norm`` long, can overflow."""
        bits = fraction_bits(samples, norm, squares=gram != "none")
        fit = 31 - math.ceil(math.log2(samples * norm))
        narrow = fit >= _NARROW_BITS
        return cls(num_classes, feature_dim, min(bits, fit) if narrow else bits, narrow, gram, parties)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The sums, in their order."""
        more: dict[Kind, bool] = {"scatter": self.gram == "triangle", "spread": self.spread}
        return ("presence", "sums", *self.products, *(kind for kind, is_summed in more.items() if is_summed))

    @property
    def products(self) -> tuple[Product, ...]:
        """Those that are summed in place of the scatter."""
        return PRODUCTS[: int(self.gram[-1])] if self.gram.startswith("means") else ()

    def words(self, kind: Kind, allowed: int) -> list[tuple[int, Unsigned]]:
        """List length and type of each array of a sum over so many classes."""
        dim, of_sums = self.feature_dim, _NARROW if self.narrow else _WIDE
        if kind == "presence":
            return [(self.num_classes, _NARROW)]
        if kind == "spread":
            return [(dim * (dim + 1) // 2, _WIDE)]
        if kind == "scatter":
            return [(dim * (dim - 1) // 2, np.dtype(np.uint16) if self.parties <= MOST_IN_16_BITS else _NARROW)]
        if kind in PRODUCTS:
            return [(dim * min(self.num_classes, dim), _NARROW)]
        more = {"none": 0, "exact": dim * (dim + 1) // 2}.get(self.gram, dim)
        return [(allowed, _WIDE), (allowed * dim, of_sums), *([(more, _WIDE)] if more else [])]

    def presence(self, class_counts: Tensor) -> Words:
        """Return which classes have samples, of (C,) counts."""
        return [(class_counts > 0).numpy().astype(_NARROW)]

    def sums(self, statistics: FeatureStatistics, allowed: Tensor) -> Words:
        """Return counts, class sums and what goes with them, of the classes allowed, (C,) bool."""
        counts, sums = statistics.class_counts[allowed], statistics.class_sums[allowed] * 2.0**self.bits
        shapes = self.words("sums", len(counts))
        values = [counts, sums.flatten()]
        if self.gram != "none":
            gram = _gram(statistics) * 4.0**self.bits
            values.append(pack_upper(gram) if self.gram == "exact" else gram.diagonal())
        return [as_words(part, kind) for part, (_, kind) in zip(values, shapes, strict=True)]

    def read_sums(self, words: Words, allowed: Tensor) -> FeatureStatistics:
        """Return the statistics of the sum; of a triangle, the Gram matrix has its diagonal only."""
        counts = torch.zeros(self.num_classes, dtype=torch.int64)
        sums = torch.zeros(self.num_classes, self.feature_dim, dtype=torch.float64)
        counts[allowed] = numbers_of(words[0]).to(torch.int64)
        sums[allowed] = numbers_of(words[1]).reshape(-1, self.feature_dim) * 2.0**-self.bits
        if self.gram == "none":
            return FeatureStatistics(counts, sums)
        numbers = numbers_of(words[2]) * 4.0**-self.bits
        gram = unpack_upper(numbers, self.feature_dim) if self.gram == "exact" else torch.diag(numbers)
        return FeatureStatistics(counts, sums, gram)

    def scatter(self, statistics: FeatureStatistics, known: Known) -> Words:
        """Return the triangle of the scatter about the class means that all know, diagonal left out."""
        ((_, kind),) = self.words("scatter", 0)
        steps = _about(statistics, known.means) / torch.outer(known.scales, known.scales).clamp(min=1e-300)
        row, column = torch.triu_indices(self.feature_dim, self.feature_dim, offset=1)
        return [as_words((steps[row, column] * _steps(kind)).round(), kind)]

    def product(self, statistics: FeatureStatistics, known: Known, directions: Tensor) -> Words:
        """Return the scatter times (d, k) directions, in steps of the most that each entry can be."""
        steps = _about(statistics, known.means) @ directions / _most(known, directions)
        return [as_words((steps * _steps(_NARROW)).round().flatten(), _NARROW)]

    def read_product(self, words: Words, known: Known, directions: Tensor) -> Tensor:
        """Return (d, k) what :meth:`product` gave the words of."""
        return numbers_of(words[0]).reshape(directions.shape) / _steps(_NARROW) * _most(known, directions)

    def means_spread(self, statistics: FeatureStatistics, means: Tensor, weights: Tensor) -> Words:
        """Return the triangle of sum_c w_c n_c (m_c - mu_c)(m_c - mu_c)^T, m_c a client's class means.

        Parameters
        ----------
        statistics : FeatureStatistics
            The client's.
        means, weights : Tensor
            (C, d) and (C,) float64: mu and w, such that no sum over clients reaches 2^62.
        """
        apart = statistics.class_means - means
        scaled = apart * (weights * statistics.class_counts).unsqueeze(1)
        return [as_words(pack_upper(scaled.T @ apart).round(), _WIDE)]

    def read_spread(self, words: Words, steps: float) -> Tensor:
        """Return the (d, d) spread that was summed in so many steps of a unit."""
        return unpack_upper(numbers_of(words[0]) / steps, self.feature_dim)

    def read_scatter(self, words: Words, summed: FeatureStatistics, known: Known) -> FeatureStatistics:
        """Return the statistics with the Gram matrix of their sums and the sum of the scatters.

        Clients lost between the two sums leave a diagonal that is larger than the triangle's own: the scatter stays
        positive semi-definite but for rounding, and its eigenvalues below 0 are cut.
        """
        steps = torch.zeros(self.feature_dim, self.feature_dim, dtype=torch.float64)
        row, column = torch.triu_indices(self.feature_dim, self.feature_dim, offset=1)
        steps[row, column] = numbers_of(words[0]) / _steps(words[0].dtype)
        scatter = mirror_upper(steps) * torch.outer(known.scales, known.scales)
        scatter.diagonal().copy_(known.diagonal)
        values, vectors = torch.linalg.eigh(scatter)
        scatter = mirror_upper((vectors * values.clamp(min=0.0)) @ vectors.T)
        return FeatureStatistics(summed.class_counts, summed.class_sums, scatter + _moved(summed, known.means))


@dataclass(frozen=True, eq=False)
class Known:
    """Sums that all clients know before they form their scatter.

    Attributes
    ----------
    means : Tensor
        (C, d) float64, the class means as float32 gives them, zero for absent classes.
    scales : Tensor
        (d,) float64, the roots of the scatter's diagonal, as float32 gives them, not below.
    diagonal : Tensor
        (d,) float64, of the scatter about these means, at least 0.
    """

    means: Tensor
    scales: Tensor
    diagonal: Tensor

    @classmethod
    def of(cls, summed: FeatureStatistics) -> Known:
        """Return it from counts, class sums and the diagonal of the Gram matrix."""
        means = summed.class_means.to(torch.float32).to(torch.float64)
        diagonal = _about(summed, means).diagonal().clamp(min=0.0)
        scales = (diagonal.sqrt() * (1.0 + 2.0**-20)).to(torch.float32).to(torch.float64)
        return cls(means, scales, diagonal)


def approximated(summed: FeatureStatistics, known: Known, directions: Tensor, products: Tensor) -> FeatureStatistics:
    """Return statistics with a Gram matrix whose scatter W is known by its products with some directions Q only.

    Nystrom's approximation, (W Q)(Q^T W Q)^-1 (W Q)^T, with the diagonal that is known: what it lacks is positive
    semi-definite, and its diagonal stands for it.

    Parameters
    ----------
    summed : FeatureStatistics
        Counts, class sums, and a Gram matrix of which the diagonal counts.
    known : Known
        About which means the scatter is, and its diagonal.
    directions, products : Tensor
        (d, k) float64 Q and W Q.
    """
    core = directions.T @ products
    values, vectors = torch.linalg.eigh((core + core.T) / 2)
    kept = values > _LEAST_SHARE * values[-1].clamp(min=1e-300)
    factor = products @ (vectors[:, kept] / values[kept].sqrt())
    scatter = factor @ factor.T
    scatter.diagonal().copy_(torch.maximum(scatter.diagonal(), known.diagonal))
    return FeatureStatistics(
        summed.class_counts, summed.class_sums, mirror_upper(scatter) + _moved(summed, known.means)
    )


def approximated_by(
    summed: FeatureStatistics,
    known: Known,
    kinds: Sequence[Product],
    product_with: Callable[[Product, Tensor], Tensor | None],
) -> FeatureStatistics:
    """Return :func:`approximated` by one product after another, each with the directions that the one before adds.

    Heads are solved from the class means by an inverse of the scatter. Divided by its diagonal, which is known, means
    and products point closer to where that leads (research/results.md).
    ``product_with`` takes (d, k) float64 directions Q, exact in float32, to W Q; with None those before are used.
    """
    directions = products = known.means.new_zeros(known.means.shape[1], 0)
    product = known.means.T
    variances = (known.diagonal + _DAMPING * known.diagonal.mean()).clamp(min=1e-300).unsqueeze(1)
    for kind in kinds:
        further = further_directions(directions, product / variances).to(torch.float64)
        if (found := product_with(kind, further)) is None:
            break
        product = found
        directions, products = torch.cat([directions, further], 1), torch.cat([products, product], 1)
    return approximated(summed, known, directions, products)


def further_directions(directions: Tensor, products: Tensor) -> Tensor:
    """Return (d, k) float32 orthonormal directions: what class means, or a product, add to earlier directions."""
    found: Tensor = torch.linalg.qr(products - directions @ (directions.T @ products))[0].to(torch.float32)
    return found


def check_range(statistics: FeatureStatistics, samples: int, norm: float) -> None:
    """Refuse one client's statistics that could make a sum overflow.

    Raises
    ------
    ValueError
        If there are more samples, or longer features, than the sum has room for.
    """
    number = statistics.num_examples
    if number > samples:
        raise ValueError(f"the sum has room for {samples} samples of a client (max-client-samples), got more")
    longest = torch.linalg.vector_norm(statistics.class_means, dim=1).max()
    trace = 0.0 if statistics.gram is None else float(statistics.gram.trace())
    if float(longest) > norm or trace > number * norm**2:
        raise ValueError(f"the sum has room for features up to {norm:.4g} long, got longer ones")


def check_sum(statistics: FeatureStatistics, samples: int, norm: float) -> None:
    """Refuse a sum that no clients' statistics give: some client sent other words than those of statistics.

    Raises
    ------
    ValueError
        Saying what is out of its range.
    """
    if int(statistics.class_counts.min()) < 0:
        raise ValueError("a sum is out of its range: a class has fewer than 0 samples")
    if bool((statistics.class_sums[statistics.class_counts == 0] != 0).any()):
        raise ValueError("a sum is out of its range: a class without samples has a sum")
    if statistics.gram is not None and float(statistics.gram.diagonal().min()) < 0:
        raise ValueError("a sum is out of its range: a square is below 0")
    check_range(statistics, samples, norm)


def _steps(kind: Unsigned) -> float:
    """Return the steps of the largest entry: half of what the word holds on either side."""
    return float(2.0 ** (8 * kind.itemsize - 2))


def _most(known: Known, directions: Tensor) -> Tensor:
    """Return what no entry of a product exceeds: |W_i q| <= sum_j sqrt(W_ii W_jj) |q_j|, W positive semi-definite."""
    return torch.outer(known.scales, known.scales @ directions.abs()).clamp(min=1e-300)


def _gram(statistics: FeatureStatistics) -> Tensor:
    if statistics.gram is None:
        raise ValueError("this sum needs the Gram matrix, got statistics without one")
    return statistics.gram


def _moved(statistics: FeatureStatistics, means: Tensor) -> Tensor:
    """Give what the Gram matrix has above the scatter about some means."""
    cross = statistics.class_sums.T @ means
    scaled = means * statistics.class_counts.to(torch.float64).sqrt().unsqueeze(1)
    return cross + cross.T - scaled.T @ scaled


def _about(statistics: FeatureStatistics, means: Tensor) -> Tensor:
    """Return the scatter of samples about (C, d) means of their classes."""
    return _gram(statistics) - _moved(statistics, means)


def as_words(values: Tensor, kind: Unsigned) -> NDArray[np.unsignedinteger]:
    """Write whole numbers as words that wrap around."""
    return values.to(torch.int64).numpy().astype(kind)


def numbers_of(words: NDArray[np.unsignedinteger]) -> Tensor:
    """Read words as numbers with a sign."""
    signed = words.view(np.dtype(f"i{words.itemsize}"))
    return torch.from_numpy(signed.astype(np.float64))


def as_signed(words: Sequence[NDArray[np.unsignedinteger]]) -> list[Tensor]:
    """Return words as tensors of signed integers, which every wire takes."""
    return [torch.from_numpy(array.view(np.dtype(f"i{array.itemsize}"))) for array in words]


def as_unsigned(tensors: Sequence[Tensor]) -> Words:
    """Return the words that :func:`as_signed` was given."""
    return [tensor.numpy().view(np.dtype(f"u{tensor.element_size()}")) for tensor in tensors]
