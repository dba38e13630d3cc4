"""Bytes of every method, trained ones and baselines included, as their papers count them.

Four bytes a number; headers, counts (but FedCGS's) and, for one round, downlink are left out. Sources: FedCOF, tables
3, 4, 8, 9, 11 and 12; FedCGS, its parameter counts; Bernier's thesis, equations 6 and 7; for FedEx-LoRA and DistMeZO,
which have no count there, what travels. What went over the wire is measured and reported apart from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Literal

from fedstats_app.methods import RECORDS, Uplink
from fedstats_app.report.compute import BYTES_PER_NUMBER, mezo_bytes, slora_bytes, training_bytes


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
