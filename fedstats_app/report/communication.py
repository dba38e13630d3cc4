"""Bytes and forward passes by the papers' formulas; what a run really sent and computed stands in its records.

Four bytes a number; headers, counts (but FedCGS's) and, for one round, downlink are left out. A forward pass is one
sample once through the backbone; a backward pass counts as two of them, and the head, which is one layer, as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from fedstats_app.methods import Uplink

BYTES_PER_NUMBER = 4
_DIRECTIONS = 2


def forward_passes(per_sample: int, *, num_examples: int, num_rounds: int = 1, repeats: int = 1) -> int:
    """Count the forward passes of a stage.

    Parameters
    ----------
    per_sample : int
        Of one sample in one repeat: 1 for the closed form and for a probe, whose features the thesis does not keep,
        3 where training goes through the backbone, 2 without gradients.
    num_examples : int
        N, the samples of the clients of one round; of all clients for the closed form.
    num_rounds : int
        R, aggregations.
    repeats : int
        E, a client's passes over its data in a round; directions without gradients.

    Raises
    ------
    ValueError
        If a number is negative.
    """
    return product(per_sample=per_sample, num_examples=num_examples, num_rounds=num_rounds, repeats=repeats)


def training_bytes(num_rounds: int, clients_per_round: int, num_parameters: int) -> int:
    """Count the bytes of training, down and up: every client of a round gets and sends every trained parameter.

    Parameters
    ----------
    num_rounds : int
        R, aggregations.
    clients_per_round : int
        Clients that take part in each.
    num_parameters : int
        Numbers that are trained, four bytes each: C d for a head without bias.

    Returns
    -------
    int
        Bytes of all clients and rounds together.

    Raises
    ------
    ValueError
        If a number is negative.
    """
    numbers = product(num_rounds=num_rounds, clients_per_round=clients_per_round, num_parameters=num_parameters)
    return _DIRECTIONS * BYTES_PER_NUMBER * numbers


def mezo_bytes(num_rounds: int, clients_per_round: int, num_directions: int) -> int:
    """Count the bytes of FedMeZO by the thesis: R (K + 2 K P), one byte for the seed and for every scalar each way.

    No implementation has one-byte scalars; what was sent is in the rounds. Source: Bernier's thesis, equation 6, whose
    table 4.1 is this with P = 1.

    Parameters
    ----------
    num_rounds : int
        R.
    clients_per_round : int
        K, clients that take part in each.
    num_directions : int
        P, scalars of a client and round.

    Returns
    -------
    int
        Bytes of all clients and rounds together.

    Raises
    ------
    ValueError
        If a number is negative.
    """
    scalars = product(num_rounds=num_rounds, clients_per_round=clients_per_round, num_directions=num_directions)
    return num_rounds * clients_per_round + _DIRECTIONS * scalars


def product(**sizes: int) -> int:
    """Return the product of sizes, none of which may be negative: a ValueError names the one that is."""
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name} must be at least 0, got {size}")
    return math.prod(sizes.values())


@dataclass(frozen=True)
class Sizes:
    """What the formulas take; a formula leaves out what it has no use for.

    Attributes
    ----------
    rows : int
        M, the number of (client, class) pairs with samples, or of means where a client sends several per class.
    clients : int
        K, clients of the run; of one round where there are several.
    classes : int
        C, all classes, present or not.
    feature_dim : int
        d, the length of what the statistics are taken of (after a feature map, if there is one).

    Raises
    ------
    ValueError
        If one is negative.
    """

    rows: int = 0
    clients: int = 0
    classes: int = 0
    feature_dim: int = 0

    def __post_init__(self) -> None:
        """Refuse negative sizes."""
        for one in fields(self):
            if getattr(self, one.name) < 0:
                raise ValueError(f"{one.name} must be at least 0, got {getattr(self, one.name)}")


def uplink_formula(formula: Uplink) -> Callable[[Sizes], int]:
    """Return the bytes that all clients send by a method's formula of numbers."""
    return lambda one: BYTES_PER_NUMBER * formula(one.rows, one.clients, one.classes, one.feature_dim)
