"""Sums over groups of samples and Gram matrices, batch by batch, in float64 on the features' device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Self, TypeAlias

import torch
from numpy.typing import NDArray
from torch import Tensor

# What a caller may have features and labels in.
ArrayLike: TypeAlias = Tensor | NDArray[Any]

# Rows converted to float64 at a time: bounds the temporary copy (8 MiB at d = 1024), large enough for full BLAS speed.
ROWS_PER_BLOCK = 1024
# Rows of a Gram matrix that are added to at a time: 640 KiB at d = 1280.
ROWS_PER_PRODUCT = 64


class Summable:
    """A value whose sums begin with nothing, so that ``sum`` takes several."""

    def __radd__(self, other: object) -> Self:
        """Return ``self`` for the 0 that ``sum`` begins with."""
        return self if other == 0 else NotImplemented


class Addable(Summable):
    """A dataclass whose tensors and numbers add up field by field; a commutative monoid under ``+``.

    A field without a value must have none on either side, and a tuple is a setting, which must be the same.
    """

    def __add__(self, other: Self) -> Self:
        """Add two values of one kind.

        Raises
        ------
        ValueError
            If shapes or settings differ, or only one side has a value: nothing is broadcast and nothing dropped.
        """
        if type(other) is not type(self):
            return NotImplemented
        summed = {}
        for member in fields(self):  # type: ignore[arg-type]  # a dataclass
            own, others = getattr(self, member.name), getattr(other, member.name)
            kinds = [getattr(value, "shape", type(value)) for value in (own, others)]
            if kinds[0] != kinds[1] or (isinstance(own, tuple) and own != others):
                raise ValueError(
                    f"values to add must have the same {member.name}, got {_kind(own)} and {_kind(others)}"
                )
            summed[member.name] = own if own is None or isinstance(own, tuple) else own + others
        return type(self)(**summed)


def _kind(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else value


def as_tensor(values: ArrayLike) -> Tensor:
    """Return a tensor as it is, and a numpy array as a tensor of the same memory."""
    return values if isinstance(values, Tensor) else torch.as_tensor(values)


def check_tensor(name: str, values: Tensor, shape: Sequence[int | None], *dtypes: torch.dtype) -> None:
    """Refuse a tensor with a ValueError if its shape (None: any size) or its dtype is another."""
    fits = len(shape) == values.ndim and all(size in (None, own) for size, own in zip(shape, values.shape, strict=True))
    if not fits or values.dtype not in dtypes:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name} must be ({sizes}) {kinds}, got {tuple(values.shape)} {values.dtype}")


def check_features(features: Tensor, labels: Tensor, num_classes: int) -> None:
    """Refuse what cannot be summed.

    Raises
    ------
    ValueError
        If shapes disagree, labels are not integers in ``[0, num_classes)``, or a feature is not finite.
    """
    if features.ndim != 2 or not features.dtype.is_floating_point or labels.shape != features.shape[:1]:
        raise ValueError(
            "features must be (n, d) floating point, with (n,) labels, "
            f"got {tuple(features.shape)} {features.dtype} and {tuple(labels.shape)}"
        )
    check_labels(labels, num_classes)
    if not all_finite(features):
        bad = int((~torch.isfinite(features)).any(dim=1).sum())
        raise ValueError(f"features must be finite, got NaN or infinity in {bad} of {features.shape[0]} rows")


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Refuse labels that are not (n,) integers in ``[0, num_classes)``.

    Raises
    ------
    ValueError
        Saying what they are.
    """
    check_tensor("labels", labels, (None,), torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        raise ValueError(
            f"labels must lie in [0, {num_classes}), got values from {int(labels.min())} to {int(labels.max())}"
        )


def all_finite(values: Tensor) -> bool:
    """Return whether no value is NaN or infinity: their sum says so in one pass, unless it overflows."""
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def accumulation_device(device: torch.device) -> torch.device:
    """Return where float64 sums can live: the device itself, or the CPU for those without float64 (Apple's MPS)."""
    return torch.device("cpu") if device.type == "mps" else device


def add_to_group_sums(group_sums: Tensor, features: Tensor, groups: Tensor) -> None:
    """Add each feature row to the row of its group, in place.

    Parameters
    ----------
    group_sums : Tensor
        (R, d) float64, changed in place.
    features : Tensor
        (n, d) floating point.
    groups : Tensor
        (n,) int64 in [0, R).
    """
    features = features.to(device=group_sums.device, dtype=torch.float64)
    groups = groups.to(device=group_sums.device, dtype=torch.int64)
    if group_sums.device.type == "cpu":
        group_sums.index_add_(0, groups, features)
        return
    # index_add_ uses atomics on a GPU, so its rounding would differ from run to run; a product with the one-hot
    # matrix of the groups present in this batch does not.
    present, position = torch.unique(groups, return_inverse=True)
    one_hot = torch.zeros(len(present), len(groups), dtype=torch.float64, device=group_sums.device)
    one_hot[position, torch.arange(len(groups), device=group_sums.device)] = 1.0
    group_sums[present] += one_hot @ features


def add_to_gram(gram: Tensor, features: Tensor) -> None:
    """Add ``features.T @ features`` to a (d, d) float64 matrix, in place."""
    if not len(features):
        return  # the product of nothing would read and write the whole matrix
    features = features.to(device=gram.device, dtype=torch.float64)
    gram.addmm_(features.T, features)


def add_rows_to_gram(gram: Tensor, rows: Tensor) -> None:
    """Add ``rows.T @ rows`` of few rows (r, d) to a (d, d) float64 matrix, in place, as added whole: to the bit.

    Block by block the product stays in the processor's cache: whole, it is read from memory and written three times.
    The lower triangle is that of the product as BLAS makes it, equal to the upper one to rounding.
    """
    for block, of_gram in zip(torch.split(rows.T, ROWS_PER_PRODUCT), torch.split(gram, ROWS_PER_PRODUCT), strict=True):
        of_gram += block @ rows


def add_in_blocks(group_sums: Tensor, gram: Tensor | None, features: Tensor, groups: Tensor) -> None:
    """Add (n, d) features of any length to the sums of their groups (n,) and, if there is one, to the Gram matrix."""
    for block, of_block in zip(torch.split(features, ROWS_PER_BLOCK), torch.split(groups, ROWS_PER_BLOCK), strict=True):
        add_to_group_sums(group_sums, block, of_block)
        if gram is not None:
            add_to_gram(gram, block)


def mirror_upper(matrix: Tensor) -> Tensor:
    """Return the symmetric matrix with the upper triangle of ``matrix`` (d, d).

    A product of BLAS is symmetric to rounding only. One triangle is what travels, so mirroring it, rather than
    averaging, makes a local statistic and a received one equal to the last bit.
    """
    return torch.triu(matrix).add_(torch.triu(matrix, diagonal=1).T)


def pack_upper(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a (d, d) matrix, row by row, as a (d (d + 1) / 2,) vector."""
    dim = matrix.shape[0]
    row, column = torch.triu_indices(dim, dim, device=matrix.device)
    return matrix[row, column]


def unpack_upper(triangle: Tensor, dim: int) -> Tensor:
    """Return the symmetric (d, d) matrix whose upper triangle, row by row, is ``triangle``."""
    row, column = torch.triu_indices(dim, dim, device=triangle.device)
    matrix = torch.zeros(dim, dim, dtype=triangle.dtype, device=triangle.device)
    matrix[row, column] = triangle
    matrix[column, row] = triangle
    return matrix


def normalize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Divide every row by its Euclidean norm; a zero row stays zero.

    Returns
    -------
    unit : Tensor
        (C, d).
    norm : Tensor
        (C,), 1 in place of 0.
    """
    # Scaling by the largest entry first keeps the squares of very small or large rows representable.
    scale = weight.abs().amax(dim=1, keepdim=True) if weight.shape[1] else weight.new_zeros(len(weight), 1)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    norm = torch.linalg.vector_norm(weight / scale, dim=1, keepdim=True) * scale
    norm = torch.where(norm > 0, norm, torch.ones_like(norm))
    return weight / norm, norm.squeeze(1)
