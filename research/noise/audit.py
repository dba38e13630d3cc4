"""Audit of the noise: an attacker who knows all samples but one guesses whether that one is there.

The attacker's score is the logarithm of the odds, the best that there is. A threshold is chosen on half of the guesses;
the other half gives a lower bound of epsilon by the intervals of Clopper and Pearson (Jagielski, Ullman and Oprea 2020,
"Auditing differentially private machine learning"). A bound above the promise is a broken promise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta  # type: ignore[import-untyped]  # scipy has no types of its own

from fedstats_app.secure.unmasking import MaskedSum
from fedstats_app.statistics.noisy_words import NoisyKind, NoisyLayout, unit
from fedstats_app.statistics.secure_words import numbers_of

Floats = NDArray[np.float64]
CONFIDENCE = 0.95
KINDS: tuple[NoisyKind, ...] = ("mean", "moments")


def scores(
    runs: int,
    layout: NoisyLayout,
    *,
    parties: int = 10,
    others: int = 20,
    seed: int | None = None,
    present: bool,
) -> Floats:
    """Return the logarithms of the odds that the canary is there, once a run, up to a constant.

    Parameters
    ----------
    runs : int
        Releases, by the app's own words and noise.
    layout : NoisyLayout
        Of the release, with the mu by which its noise is made.
    parties : int
        That add a share of noise each; one of them has all samples.
    others : int
        Samples besides the canary, drawn once, the same for all calls.
    seed : int, optional
        Of the noise; drawn anew by default.
    present : bool
        True if the canary is among the samples.
    """
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(others, layout.feature_dim, generator=draw, dtype=torch.float64)
    labels = torch.arange(others) % layout.num_classes
    # Opposite to the mean of all others: the unlikeliest of all.
    opposite = -unit(features).mean(dim=0, keepdim=True)
    rest, canary = (features, labels), (opposite, labels[:1])
    keys = None if seed is None else np.random.default_rng([seed, present])
    found = []
    for _ in range(runs):
        mean, odds = None, 0.0
        for kind in KINDS:
            known, hers = layout.sums(kind, [rest], mean), layout.sums(kind, [canary], mean)
            own = [words + more for words, more in zip(known, hers, strict=True)] if present else known
            nothing = [torch.zeros_like(words) for words in known]
            words = [
                layout.noisy(kind, nothing if party else own, parties, None if keys is None else keys.bytes(32))
                for party in range(parties)
            ]
            summed = MaskedSum([number for number, _ in layout.shapes(kind)], query="")
            for party, own_words in enumerate(words):
                summed.add(party, own_words)
            sizes = layout.noise(kind, parties)
            for part, its, of_canary, size in zip(summed.words, known, hers, sizes, strict=True):
                odds += float((numbers_of(part) - its) @ of_canary) / (size**2 * parties)
            mean = layout.read_mean(summed.words, others) if kind == "mean" else mean
        found.append(odds)
    return np.array(found)


def lower_bound(absent: Floats, present: Floats, delta: float) -> float:
    """Return an epsilon that is exceeded with the confidence of :data:`CONFIDENCE`, 0 if nothing is.

    Parameters
    ----------
    absent, present : NDArray
        (runs,) scores each.
    delta : float
        Of the promise.
    """
    best, bound = -1.0, 0.0
    for low, high in ((absent, present), (-present, -absent)):
        half = len(low) // 2
        for threshold in np.quantile(np.concatenate([low[:half], high[:half]]), np.linspace(0.01, 0.995, 100)):
            seen = _epsilon(low[:half], high[:half], threshold, delta)
            if seen > best:
                best, bound = seen, _epsilon(low[half:], high[half:], threshold, delta)
    return bound


def _epsilon(low: Floats, high: Floats, threshold: float, delta: float) -> float:
    """Return the logarithm of how much oftener the higher scores pass, each rate at the worse end of its interval."""
    wrong, right, risk = int((low > threshold).sum()), int((high > threshold).sum()), (1 - CONFIDENCE) / 2
    most = 1.0 if wrong == len(low) else float(beta.ppf(1 - risk, wrong + 1, len(low) - wrong))
    least = 0.0 if right == 0 else float(beta.ppf(risk, right, len(high) - right + 1))
    return max(math.log((least - delta) / most), 0.0) if least > delta else 0.0
