"""How sure a head is to be before it is trained: the temperature of the least loss among many."""

from __future__ import annotations

import math
from collections.abc import Sequence

# 2^-8, 2^-7.5, ..., 2^8.
TEMPERATURES: tuple[float, ...] = tuple(math.pow(2.0, step / 2) for step in range(-16, 17))

# Nats: what is given up for a loss that still bends, where the least loss is that of the lowest temperature.
SURE_ENOUGH = 0.01


def best_temperature(losses: Sequence[float]) -> float:
    """Return the temperature of the least loss, between the grid's points by a parabola over log T.

    Closed-form heads are right about the order of classes and say nothing of how sure they are: their logits are
    cosines, or targets of 0 and 1. Tuned as they are, most of the first steps would go into their scale.

    Parameters
    ----------
    losses : sequence of float
        At ``TEMPERATURES``.

    Returns
    -------
    float
        Positive; 1 where the temperature does not matter.

    Raises
    ------
    ValueError
        If there are not as many losses, or one is not finite.
    """
    if len(losses) != len(TEMPERATURES) or not all(math.isfinite(loss) for loss in losses):
        raise ValueError(f"there must be {len(TEMPERATURES)} finite losses, got {list(losses)[:3]} ...")
    best = min(range(len(losses)), key=losses.__getitem__)
    if max(losses) - losses[best] <= 1e-12 * max(losses):
        return 1.0
    if best == 0:
        # All samples are right, and the surer the better: beyond this there would be nothing left to see.
        return max(t for t, loss in zip(TEMPERATURES, losses, strict=True) if loss <= losses[0] + SURE_ENOUGH)
    if best == len(losses) - 1:
        return TEMPERATURES[best]
    before, at, after = losses[best - 1 : best + 2]
    bend = before - 2 * at + after
    shift = 0.5 * (before - after) / bend if bend > 0.0 else 0.0
    return TEMPERATURES[best] * math.pow(2.0, shift / 2)
