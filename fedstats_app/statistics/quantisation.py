"""Rows of numbers in few bits: a step per row and small integers, or half precision of a scaled row."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

# A row's largest number is so many steps.
LEVELS = {"int8": 127, "int4": 7}
# Of a row in half precision each number is off by at most this share of it, or of the row's largest one over 2^14.
HALF_EPS = 2.0**-11


def encoded(rows: Tensor, kind: str, *, dithered: bool = False) -> tuple[Tensor, Tensor]:
    """Return rows in few bits and a scale for each: about codes times scale.

    Parameters
    ----------
    rows : Tensor
        (m, n) floating point, finite.
    kind : {"float16", "int8"}
        Of the codes.
    dithered : bool
        Whether integers are rounded up or down by chance, so that each number is right on average. The draw follows
        from the rows themselves: who is asked again gives the same codes.

    Returns
    -------
    codes : Tensor
        (m, n) float16 within [-1, 1], or int8 within [-127, 127].
    scales : Tensor
        (m,) float32, at least 0.

    Raises
    ------
    ValueError
        If a scale does not fit float32.
    """
    exact = rows.to("cpu", torch.float64)
    levels = LEVELS.get(kind, 1)
    largest = exact.abs().amax(dim=1) if exact.numel() else exact.new_zeros(len(exact))
    scales = (largest / levels).to(torch.float32)
    if not bool(torch.isfinite(scales).all()):
        raise ValueError(f"statistics must fit float32, got values up to {float(largest.max()):.3g}")
    units = exact / torch.where(scales > 0, scales, 1.0).to(torch.float64).unsqueeze(1)
    if kind == "float16":
        return units.to(torch.float16), scales
    if dithered:
        digest = hashlib.sha256(np.ascontiguousarray(exact.numpy()).tobytes()).digest()
        chance = np.random.default_rng(int.from_bytes(digest[:16], "big")).random(tuple(units.shape))
        units = torch.floor(units + torch.from_numpy(chance))
    else:
        units = units.round()
    return units.clamp(-levels, levels).to(torch.int8), scales


def decoded(codes: Tensor, scales: Tensor) -> Tensor:
    """Return (m, n) float32 rows from (m, n) codes and (m,) scales."""
    return codes.to(torch.float32) * scales.unsqueeze(1)


def largest_errors(codes: Tensor, scales: Tensor) -> Tensor:
    """Return (m,) float64: how far, as a length, a row can be from the one that was encoded.

    An integer is off by less than a step where it was dithered; half precision by its rounding.
    """
    steps = scales.to(torch.float64)
    width = codes.shape[1] if codes.ndim == 2 else 0
    if codes.dtype == torch.int8:
        errors: Tensor = steps * width**0.5
        return errors
    lengths = codes.to(torch.float64).square().sum(dim=1).sqrt()
    errors = steps * (HALF_EPS * lengths + 2.0**-24 * width**0.5)
    return errors


def direction_codes(directions: Tensor, kind: str) -> Tensor:
    """Return (k, n) int8 codes of rows of which only the direction counts: the largest number is 127, or 7."""
    largest = (
        directions.abs().amax(dim=1, keepdim=True) if directions.numel() else directions.new_ones(len(directions), 1)
    )
    return (directions.to(torch.float64) / largest.to(torch.float64) * LEVELS[kind]).round().to(torch.int8)


def unit_rows(codes: Tensor) -> Tensor:
    """Return (k, n) float32 rows of length 1 along codes, of which none is zero."""
    exact = codes.to(torch.float64)
    return (exact / exact.square().sum(dim=1, keepdim=True).sqrt()).to(torch.float32)


def packed_nibbles(codes: Tensor) -> Tensor:
    """Return (k, n) codes within [-7, 7] as (k, ceil(n / 2)) uint8, the first of two in the upper half."""
    shifted = (codes.to(torch.int16) + 8).to(torch.uint8)
    if shifted.shape[1] % 2:
        shifted = torch.cat([shifted, shifted.new_full((len(shifted), 1), 8)], dim=1)
    return shifted[:, ::2] * 16 + shifted[:, 1::2]


def unpacked_nibbles(packed: Tensor, width: int) -> Tensor:
    """Return (k, width) int8 codes within [-8, 7] from what :func:`packed_nibbles` gave."""
    codes = torch.stack([packed // 16, packed % 16], dim=2).flatten(1)[:, :width]
    return (codes.to(torch.int16) - 8).to(torch.int8)
