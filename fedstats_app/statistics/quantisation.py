"""Rows of numbers in few bits: a step per row and small integers, or half precision of a scaled row."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

# Steps of a row's largest number in int8.
LEVELS = 127


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
    levels = LEVELS if kind == "int8" else 1
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


def direction_codes(directions: Tensor) -> Tensor:
    """Return (k, n) int8 codes of rows of which only the direction counts: the largest number is 127."""
    largest = (
        directions.abs().amax(dim=1, keepdim=True) if directions.numel() else directions.new_ones(len(directions), 1)
    )
    return (directions.to(torch.float64) / largest.to(torch.float64) * LEVELS).round().to(torch.int8)


def unit_rows(codes: Tensor) -> Tensor:
    """Return (k, n) float32 rows of length 1 along codes, of which none is zero."""
    exact = codes.to(torch.float64)
    return (exact / exact.square().sum(dim=1, keepdim=True).sqrt()).to(torch.float32)
