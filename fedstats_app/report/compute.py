"""What each stage computes and what training sends, by the papers' formulas.

Compute is counted in forward passes: one sample once through the backbone; a backward pass counts as two of them, and
the head, which is one layer, as nothing. Source: Bernier's thesis, equations 8 to 11. What a run really computed and
sent is in its rounds.
"""

from __future__ import annotations

import math

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


def slora_bytes(
    *, num_rounds: int, clients_per_round: int, num_parameters: int, num_adapter_parameters: int, density: float = 0.1
) -> int:
    """Count the bytes of SLoRA, with which the thesis compares FedMeZO.

    For a fifth of the rounds a fixed random share of the model's parameters travels down and up, and then low-rank
    adapters do, four bytes a number. The positions are drawn from a seed and not sent. The thesis's own number (69 GB)
    does not follow from its inputs.

    Parameters
    ----------
    num_rounds : int
        Of both stages together.
    clients_per_round : int
        Clients that take part in each.
    num_parameters : int
        Of the model.
    num_adapter_parameters : int
        Of the adapters.
    density : float
        Share of the parameters that the first stage trains.

    Returns
    -------
    int
        Bytes of all clients and rounds together.

    Raises
    ------
    ValueError
        If a number is negative.
    """
    sparse_rounds = round(0.2 * num_rounds)
    sparse = training_bytes(
        num_rounds=sparse_rounds,
        clients_per_round=clients_per_round,
        num_parameters=round(density * num_parameters),
    )
    return sparse + training_bytes(
        num_rounds=num_rounds - sparse_rounds,
        clients_per_round=clients_per_round,
        num_parameters=num_adapter_parameters,
    )


def product(**sizes: int) -> int:
    """Return the product of sizes, none of which may be negative: a ValueError names the one that is."""
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name} must be at least 0, got {size}")
    return math.prod(sizes.values())
