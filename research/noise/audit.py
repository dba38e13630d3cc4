"""What the noise really hides: an attacker who knows all samples but one guesses whether that one is there.

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
from torch import Tensor

from fedstats_app.secure.discrete_gaussian import DiscreteGaussian
from fedstats_app.statistics.noisy_words import Division, deviations, unit
from research.noise.mechanism import Noise, class_sums, release

Floats = NDArray[np.float64]
CONFIDENCE = 0.95


def shares(parties: int, steps: float, seed: int | None = None) -> Noise:
    """Make a function that rounds to a grid and adds a share of noise for each party, of so many steps.

    With a seed it adds the same noise each time that it is made.
    """
    table = DiscreteGaussian.of(steps)
    keys = None if seed is None else np.random.default_rng(seed)

    def noisy(values: Tensor, deviation: float) -> Tensor:
        step = deviation / (steps * math.sqrt(parties))
        key = None if keys is None else keys.bytes(32)
        drawn = table.draw(parties * values.numel(), key).reshape(parties, -1).sum(axis=0)
        return ((values / step).round() + torch.from_numpy(drawn).reshape(values.shape)) * step

    return noisy


def scores(
    runs: int, mu: float, noise: Noise, *, dim: int = 4, num_classes: int = 2, others: int = 20, present: bool
) -> Floats:
    """Return the logarithms of the odds that the canary is there, once a run, up to a constant.

    Parameters
    ----------
    runs : int
        Releases.
    mu : float
        Promised.
    noise : callable
        Of :func:`research.noise.mechanism.release`.
    dim, num_classes, others : int
        Of the data, which are drawn once, the same for all calls.
    present : bool
        Whether the canary is.
    """
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(others, dim, generator=draw, dtype=torch.float64)
    labels = torch.arange(others) % num_classes
    # Opposite to the mean of all others: the unlikeliest of all.
    canary = -unit(features).mean(dim=0, keepdim=True)
    own = (torch.cat([features, canary]), torch.cat([labels, labels[:1]])) if present else (features, labels)
    parts = Division().parts(mu, num_classes, dim)
    found = []
    for _ in range(runs):
        out = release(*own, num_classes, num_samples=others, mu=mu, noise=noise)
        assert out.moments is not None  # noqa: S101  # the release has all parts
        turned, hers = deviations(features, out.mean), deviations(canary, out.mean)
        left = (
            (out.mean * others - unit(features).sum(dim=0)) @ unit(canary)[0],
            (out.sums - class_sums(turned, labels, num_classes))[0] @ hers[0],
            ((out.moments - turned.T @ turned) * (hers.T @ hers)).sum(),
        )
        found.append(sum(part**2 * float(one) for part, one in zip(parts, left, strict=True)))
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
