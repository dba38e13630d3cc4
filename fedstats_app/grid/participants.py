"""Who takes part in a round: drawn by (seed, round), so that an interrupted run goes on as it would have."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

# Keeps the draw of a training round's clients apart from every other draw by (seed, number).
SAMPLING_STREAM = 0x7EA1


def draw_participants(clients: Collection[int], fraction: float, seed: int, server_round: int) -> list[int]:
    """Return the clients of a round, ascending, drawn without replacement.

    Parameters
    ----------
    clients : collection of int
        All that can take part.
    fraction : float
        Share of them, in (0, 1]; at least one is drawn.
    seed, server_round : int
        What the draw depends on.
    """
    ordered = sorted(clients)
    size = max(1, round(fraction * len(ordered)))
    if size >= len(ordered):
        return ordered
    draw = np.random.default_rng([seed, SAMPLING_STREAM, server_round])
    return sorted(int(client) for client in draw.choice(np.array(ordered, dtype=object), size, replace=False))
