"""Bytes and forward passes by the papers' formulas; what a run really sent and computed stands in its records.

Four bytes a number; headers, counts (but FedCGS's) and, for one round, downlink are left out. Sources: FedCOF, tables
3, 4, 8, 9, 11 and 12; FedCGS, its parameter counts; Bernier's thesis, equations 6 to 11; for FedEx-LoRA and DistMeZO,
which have no count there, what travels. A forward pass is one sample once through the backbone; a backward pass counts
as two of them, and the head, which is one layer, as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Literal

from fedstats_app.methods import RECORDS, Uplink

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
    components : int
        Gaussians of a mixture with diagonal covariances.
    rounds : int
        R, aggregations.
    parameters : int
        Numbers that are trained; for adapters, the weights of the layers that have them; for SLoRA the model's.
    adapter_parameters : int
        Of all adapters together.
    directions : int
        P, of FedMeZO in a round.

    Raises
    ------
    ValueError
        If one is negative.
    """

    rows: int = 0
    clients: int = 0
    classes: int = 0
    feature_dim: int = 0
    components: int = 1
    rounds: int = 1
    parameters: int = 0
    adapter_parameters: int = 0
    directions: int = 1

    def __post_init__(self) -> None:
        """Refuse negative sizes."""
        for one in fields(self):
            if getattr(self, one.name) < 0:
                raise ValueError(f"{one.name} must be at least 0, got {getattr(self, one.name)}")


def uplink_formula(formula: Uplink) -> Callable[[Sizes], int]:
    """Return the bytes that all clients send by a method's formula of numbers."""
    return lambda one: BYTES_PER_NUMBER * formula(one.rows, one.clients, one.classes, one.feature_dim)


def _exact_adapters(one: Sizes) -> int:
    """FedEx-LoRA: as the naive one, and down what the mean of the products has beyond the product of the means.

    That has rank clients x r at most, so it travels as its factors, or as a matrix where that is less.
    """
    residual = min(one.parameters, one.clients * one.adapter_parameters)
    return training_bytes(one.rounds, one.clients, one.adapter_parameters) + (
        BYTES_PER_NUMBER * one.rounds * one.clients * residual
    )


_LOCAL_HEADS = uplink_formula(lambda M, K, C, d: K * C * (d + 1))
_CLASS_COVARIANCES = uplink_formula(lambda M, K, C, d: M * (d + d**2))

FORMULAS: dict[str, Callable[[Sizes], int]] = {
    **{name: uplink_formula(method.uplink) for name, method in RECORDS.items() if method.uplink is not None},
    "ccvr": _CLASS_COVARIANCES,
    "fedpft": lambda one: BYTES_PER_NUMBER * one.clients * one.classes * one.components * (2 * one.feature_dim + 1),
    "one-shot-fedavg": _LOCAL_HEADS,
    "ensemble": _LOCAL_HEADS,
    "fedavg": lambda one: training_bytes(one.rounds, one.clients, one.parameters),
    "lora": lambda one: training_bytes(one.rounds, one.clients, one.adapter_parameters),
    "fedex-lora": _exact_adapters,
    "slora": lambda one: slora_bytes(
        num_rounds=one.rounds,
        clients_per_round=one.clients,
        num_parameters=one.parameters,
        num_adapter_parameters=one.adapter_parameters,
    ),
    "fedmezo": lambda one: mezo_bytes(one.rounds, one.clients, one.directions),
    # The model goes down before every round, where FedMeZO sends a seed.
    "distmezo": lambda one: (
        BYTES_PER_NUMBER * one.rounds * one.clients * one.parameters + one.rounds * one.clients * one.directions
    ),
}


def formula_bytes(method: str, sizes: Sizes) -> int:
    """Return the bytes of all clients and rounds together by a method's formula.

    Parameters
    ----------
    method : str
        One of :data:`FORMULAS`: a method's name; ccvr (a covariance for every class and client);
        fedpft; one-shot-fedavg and ensemble (of heads with a bias); fedavg (any model, so also a probe or an MLP
        head); lora, fedex-lora, slora; fedmezo and distmezo.
    sizes : Sizes
        Of the run.

    Returns
    -------
    int
        Up for what takes one round, else up and down.

    Raises
    ------
    ValueError
        If the method is unknown.
    """
    if method not in FORMULAS:
        raise ValueError(f"method: no formula of bytes for {method!r}; there is one for {', '.join(FORMULAS)}")
    return FORMULAS[method](sizes)


def verdict(num_bytes: int, printed_megabytes: str) -> Literal["rounded", "truncated", "wrong"]:
    """Say how a printed number of megabytes (10^6 bytes) follows from the bytes.

    Parameters
    ----------
    num_bytes : int
        By the formula.
    printed_megabytes : str
        As the table has it, "110.2" or "1.6e+06". Zeros at the end of a whole number do not count as digits.
    """
    printed, exact = Decimal(printed_megabytes), Decimal(num_bytes) / 1_000_000
    unit = Decimal(1).scaleb(int(printed.normalize().as_tuple().exponent))
    if exact.quantize(unit, ROUND_HALF_UP) == printed:
        return "rounded"
    return "truncated" if exact.quantize(unit, ROUND_DOWN) == printed else "wrong"
