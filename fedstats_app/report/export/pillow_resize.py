"""Pillow's antialiased resize of 8-bit images as matrix products, to the bit: what ONNX's own Resize is not.

Pillow resamples in fixed point, one side after the other, and rounds to 8 bits in between (`Resample.c`). Each of the
two passes is a product with a matrix of whole numbers, which float64 holds exactly, so that whatever multiplies
matrices gives the same pixels. ONNX Runtime's Resize is off by up to 2 of 255 levels where bilinear enlarges 64 to 224
pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

# Which side comes first. Pillow 13 begins with the height where that leaves less to do; older ones never do.
Order = Literal["width first", "by size"]
Curve = Callable[[Tensor], Tensor]
_ORDERS: tuple[Order, ...] = ("width first", "by size")
# PRECISION_BITS of Pillow: 32 bits less 8 of the pixel and 2 for what overshoots.
_ONE = float(1 << 22)
# Width, height and side at which the orders differ, and at which neither may fail.
_PROBES = (
    (6, 18, 15), (18, 6, 15), (5, 40, 9), (40, 5, 9), (7, 5, 16), (30, 21, 11), (21, 30, 11), (8, 8, 8), (1, 3, 2),
)  # fmt: skip


def _bilinear(x: Tensor) -> Tensor:
    return (1.0 - x.abs()).clamp(min=0.0)


def _bicubic(x: Tensor) -> Tensor:
    a, x = -0.5, x.abs()
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return torch.where(x < 1.0, near, torch.where(x < 2.0, far, 0.0))


# From a filter's name to half its width, in pixels of the smaller image, and its curve.
FILTERS: dict[str, tuple[float, Curve]] = {"bilinear": (1.0, _bilinear), "bicubic": (2.0, _bicubic)}


def order_of_pillow(interpolation: str) -> Order | None:
    """Find out with which order `pillow_resize` gives the pixels of the Pillow that is installed, on images of noise.

    None if there is none, or the interpolation, a filter's name in lower case, is none of `FILTERS`.
    """
    if interpolation not in FILTERS:
        return None
    rng = np.random.default_rng(0)
    images = [(rng.integers(0, 256, (height, width, 3), dtype=np.uint8), side) for width, height, side in _PROBES]
    for order in _ORDERS:
        if all(_is_as_pillow(image, side, interpolation, order) for image, side in images):
            return order
    return None


def _is_as_pillow(image: NDArray[np.uint8], side: int, interpolation: str, order: Order) -> bool:
    wanted = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling[interpolation.upper()]))
    made = pillow_resize(torch.from_numpy(image)[None], side, interpolation, order)
    return bool((made[0].permute(1, 2, 0).numpy() == wanted).all())


def pillow_resize(images: Tensor, side: int, interpolation: str, order: Order) -> Tensor:
    """Resize (N, H, W, 3) uint8 images to a square of `side` pixels as `PIL.Image.Image.resize` does.

    Returns
    -------
    Tensor
        (N, 3, side, side) float64, whole numbers from 0 to 255.
    """
    pixels = images.permute(0, 3, 1, 2).to(torch.float64)
    # Tensors: in an exported graph sizes are known only when it runs.
    rows, columns = (torch.arange(images.shape[axis], dtype=torch.float64) for axis in (1, 2))
    height, width = rows[-1] + 1.0, columns[-1] + 1.0
    down, across = _coefficients(rows, side, interpolation), _coefficients(columns, side, interpolation).T
    width_first = _rounded(down @ _rounded(pixels @ across))
    if order == "width first":
        return width_first
    height_first = _rounded(_rounded(down @ pixels) @ across)
    return torch.where((height > side) & (height - side > 2.0 * (width - side)), height_first, width_first)


def _rounded(sums: Tensor) -> Tensor:
    return ((sums + _ONE / 2) / _ONE).floor().clamp(0.0, 255.0)


def _coefficients(inputs: Tensor, side: int, interpolation: str) -> Tensor:
    """Return the (side, size) whole numbers by which a pass multiplies pixels 0, 1, ... size - 1; a row sums to `_ONE`.

    Operations come in Pillow's order, for the same last bits.
    """
    support, curve = FILTERS[interpolation]
    scale = (inputs[-1] + 1.0) / side
    stretch = scale.clamp(min=1.0)
    centre = ((torch.arange(side, dtype=torch.float64) + 0.5) * scale)[:, None]
    first = (centre - support * stretch + 0.5).floor()
    end = (centre + support * stretch + 0.5).floor()
    weights = curve((inputs - centre + 0.5) * (1.0 / stretch))
    weights = torch.where((inputs >= first) & (inputs < end), weights, 0.0)
    shares = weights / weights.sum(dim=1, keepdim=True) * _ONE
    return torch.where(shares < 0.0, (shares - 0.5).ceil(), (shares + 0.5).floor())
