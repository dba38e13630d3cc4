"""Bytes by the papers' formulas, of what the tables compare: our methods, baselines, trainings.

Four bytes a number; headers, counts (but FedCGS's) and, for one round, downlink are left out. Sources: FedCOF, tables
3, 4, 8, 9, 11 and 12; FedCGS, its parameter counts; Bernier's thesis, equations 6 to 11; for FedEx-LoRA and DistMeZO,
which have no count there, what travels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Literal

from fedstats_app.methods import RECORDS
from fedstats_app.report.communication import BYTES_PER_NUMBER, Sizes, mezo_bytes, training_bytes, uplink_formula


@dataclass(frozen=True)
class TableSizes(Sizes):
    """What the formulas of the papers' tables take besides.

    Attributes
    ----------
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
    """

    components: int = 1
    rounds: int = 1
    parameters: int = 0
    adapter_parameters: int = 0
    directions: int = 1


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


def _exact_adapters(one: TableSizes) -> int:
    """FedEx-LoRA: as the naive one, and down what the mean of the products has beyond the product of the means.

    That has rank clients x r at most, so it travels as its factors, or as a matrix where that is less.
    """
    residual = min(one.parameters, one.clients * one.adapter_parameters)
    return training_bytes(one.rounds, one.clients, one.adapter_parameters) + (
        BYTES_PER_NUMBER * one.rounds * one.clients * residual
    )


_LOCAL_HEADS = uplink_formula(lambda M, K, C, d: K * C * (d + 1))
_CLASS_COVARIANCES = uplink_formula(lambda M, K, C, d: M * (d + d**2))

FORMULAS: dict[str, Callable[[TableSizes], int]] = {
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


def formula_bytes(method: str, sizes: TableSizes) -> int:
    """Return the bytes of all clients and rounds together by a method's formula.

    Parameters
    ----------
    method : str
        One of :data:`FORMULAS`: a method's name; ccvr (a covariance for every class and client);
        fedpft; one-shot-fedavg and ensemble (of heads with a bias); fedavg (any model, so also a probe or an MLP
        head); lora, fedex-lora, slora; fedmezo and distmezo.
    sizes : TableSizes
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
