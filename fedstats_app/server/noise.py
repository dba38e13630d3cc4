"""Estimate of the accuracy under noise, from sizes alone, before anything is sent."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence

from fedstats_app.methods import display_name
from fedstats_app.secure.account import PLACES, Promise, epsilon_of, signal_to_noise

# At a signal-to-noise ratio of at least so much, heads kept at least these shares of their accuracy without noise, on
# ten sets of data (FedCGS on seven; research/noise.md).
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
KEPT: dict[str, tuple[float, ...]] = {
    "fedncm": (0.63, 0.76, 0.89, 0.93, 0.93, 0.95, 0.95),
    "fed3r": (0.60, 0.61, 0.71, 0.77, 0.83, 0.90, 0.93),
    "fedcgs": (0.54, 0.60, 0.69, 0.76, 0.82, 0.88, 0.91),
}
# Below the first much is lost; from the second on a larger epsilon gains little.
ENOUGH, GOOD = 2.0, 8.0


def noise_in_words(promise: Promise, methods: Sequence[str], num_classes: int, dim: int, parties: int) -> Iterator[str]:
    """Yield a line on the cost of a promise, and one on an epsilon that would cost little.

    All parties, the clients, may add noise, though a part of them would be enough.
    """
    added = math.sqrt(promise.enough(parties) / parties)
    ratio = signal_to_noise(promise.num_samples, num_classes, dim, promise.mu * added)
    found = bisect.bisect_right(RATIOS, ratio) - 1
    kept = ", ".join(f"{display_name(method)} {100 * KEPT[method][found]:.0f} %" for method in methods)
    accuracy = f"at least, where it was measured: {kept}" if found >= 0 else "little: it was never measured so low"
    yield (
        f"noise ({PLACES[promise.where]}) for epsilon {promise.epsilon:g} at delta {promise.delta:.2g} for one sample "
        f"of {promise.num_samples:,}: signal to noise {ratio:.2g}; of the accuracy it leaves "
        f"{accuracy}"
    )
    aim = ENOUGH if ratio < ENOUGH else GOOD
    if ratio < aim:
        needed = epsilon_of(promise.mu * aim / ratio, promise.delta)
        warning = "much is lost below a signal to noise of 2: " if aim == ENOUGH else ""
        yield f"{warning}dp-epsilon {needed:.2g} would give a signal to noise of {aim:g}"
