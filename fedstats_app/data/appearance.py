"""Looks of images, without a network: copies, brightness, size and grey, for the eyes of a site."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.dataset import Sample

# In robust standard deviations; and what is none: a hundredth of the brightness, a tenth of an octave of pixels.
FAR, NARROW = 6.0, (0.01, 0.1)
# Of all images; rarer is named.
RARE = 0.05
# Thumbnails tell brightness and colour well enough, and keep noise of a camera from being a colour.
_SIDE, _GREY = 64, 8


class Appearance(NamedTuple):
    """Looks of one sample.

    Attributes
    ----------
    digest : bytes
        Of its pixels, or of its text: copies have the same.
    brightness : float
        Mean of its pixels, 0 to 1.
    pixels : int
        Width times height; for a text its characters.
    grey : float
        Share of its pixels without colour.
    """

    digest: bytes
    brightness: float
    pixels: int
    grey: float


def appearance_of(sample: Sample) -> Appearance:
    """Look at one RGB image or text."""
    if isinstance(sample, str):
        return Appearance(hashlib.sha256(sample.encode("utf-8", "surrogatepass")).digest(), 0.0, len(sample), 0.0)
    digest = hashlib.sha256(f"{sample.size}".encode() + sample.tobytes()).digest()
    small = np.asarray(sample.resize((_SIDE, _SIDE), Image.Resampling.BOX)).astype(np.int64)  # (64, 64, 3)
    grey = np.ptp(small, axis=2) <= _GREY
    return Appearance(digest, float(small.mean()) / 255, sample.width * sample.height, float(grey.mean()))


def copies(found: Sequence[Appearance], labels: NDArray[np.int64]) -> list[list[int]]:
    """Return the groups of equal samples that have labels of two classes or more, as indices."""
    groups = defaultdict(list)
    for index, seen in enumerate(found):
        groups[seen.digest].append(index)
    return [group for group in groups.values() if len({int(labels[index]) for index in group}) > 1]


def unlike(found: Sequence[Appearance]) -> dict[int, str]:
    """Return, by index, in which words an image differs from the others: brightness, size, grey or colour."""
    if not found:
        return {}
    values = np.array([[seen.brightness, np.log2(max(seen.pixels, 1))] for seen in found])  # (n, 2)
    away = values - np.median(values, axis=0)
    spread = 1.4826 * np.median(np.abs(away), axis=0)
    far = away / np.maximum(spread, NARROW)
    grey = np.array([seen.grey > 0.99 for seen in found])
    rare = grey if grey.mean() <= RARE else ~grey if grey.mean() >= 1 - RARE else np.zeros_like(grey)
    words: defaultdict[int, list[str]] = defaultdict(list)
    for column, (low, high) in enumerate((("dark", "bright"), ("small", "large"))):
        for index in np.flatnonzero(np.abs(far[:, column]) > FAR):
            words[int(index)].append(low if far[index, column] < 0 else high)
    for index in np.flatnonzero(rare):
        words[int(index)].append("grey" if grey[index] else "coloured")
    return {index: ", ".join(words[index]) for index in sorted(words)}
