"""How the clients' learning rate goes over the rounds."""

from __future__ import annotations

import math
from typing import Literal, get_args

Schedule = Literal["constant", "linear", "cosine"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)


def rate_factor(schedule: Schedule, number: int, num_rounds: int, warm_up: int = 0) -> float:
    """Return what the learning rate is multiplied by in a round: above 0, at most 1.

    It rises in equal steps to 1 in the first round after the warm-up, and stays there, or falls from there to next to
    nothing in the last one: by equal steps, or as the first half of a cosine.

    Parameters
    ----------
    schedule : {"constant", "linear", "cosine"}
        How it goes after the warm-up.
    number, num_rounds : int
        The round, from 1, and how many there are.
    warm_up : int
        Rounds before it is whole.
    """
    if number <= warm_up:
        return number / (warm_up + 1)
    passed = (number - warm_up - 1) / max(num_rounds - warm_up, 1)  # in [0, 1)
    if schedule == "linear":
        return 1.0 - passed
    return 0.5 * (1.0 + math.cos(math.pi * passed)) if schedule == "cosine" else 1.0
