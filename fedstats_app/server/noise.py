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


def noise_in_words(
    promise: Promise, methods: Sequence[str], num_classes: int, dim: int, parties: int, num_all: int = 0
) -> Iterator[str]:
    """Yield a line on the cost of a promise, and one on an epsilon that would cost little; of persons, what they cost.

    All parties, the clients, may add noise, though a part of them would be enough. ``num_all`` are the samples of a
    simulation, of which the promise's are those that persons give.
    """
    added = math.sqrt(promise.enough(parties) / parties)
    ratio = signal_to_noise(promise.num_samples, num_classes, dim, promise.sample_mu * added)
    found = bisect.bisect_right(RATIOS, ratio) - 1
    kept = ", ".join(f"{display_name(method)} {100 * KEPT[method][found]:.0f} %" for method in methods)
    accuracy = f"at least, where it was measured: {kept}" if found >= 0 else "little: it was never measured so low"
    unit = f"person with at most {promise.per_person}" if promise.per_person else "sample"
    yield (
        f"noise ({PLACES[promise.where]}) for epsilon {promise.epsilon:g} at delta {promise.delta:.2g} for one {unit} "
        f"of {promise.num_samples:,}: signal to noise {ratio:.2g}; of the accuracy it leaves "
        f"{accuracy}"
    )
    if promise.per_person and num_all:
        whole = signal_to_noise(num_all, num_classes, dim, promise.mu * added)
        yield (
            f"with dp-unit = sample all {num_all:,} samples would count, at a signal to noise of {whole:.2g}, and hide "
            "each sample alone"
        )
    aim = ENOUGH if ratio < ENOUGH else GOOD
    if ratio < aim:
        needed = epsilon_of(promise.mu * aim / ratio, promise.delta)
        warning = "much is lost below a signal to noise of 2: " if aim == ENOUGH else ""
        yield f"{warning}dp-epsilon {needed:.2g} would give a signal to noise of {aim:g}"
