"""Bytes by the papers' formulas, of what the tables compare: our methods, baselines, trainings.

Four bytes a number; headers, counts (but FedCGS's) and, for one round, downlink are left out. Sources: FedCOF, tables
3, 4, 8, 9, 11 and 12; FedCGS, its parameter counts; Bernier's thesis, equations 6 to 11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import ROUND_DOWN, ROUND_HALF_UP, Decimal
from typing import Literal

from fedstats_app.methods import METHODS, Method
from fedstats_app.report.training_record import BYTES_PER_NUMBER, mezo_bytes, training_bytes


@dataclass(frozen=True)
class TableSizes:
    """Inputs of the formulas of the papers' tables; a formula ignores those that it does not need.

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
    prompts : int
        P, the prompts of a pool, added up over the rounds.

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
    prompts: int = 0

    def __post_init__(self) -> None:
        """Refuse negative sizes."""
        for name, size in asdict(self).items():
            if size < 0:
                raise ValueError(f"{name} must be at least 0, got {size}")


def uplink_formula(formula: Callable[[int, int, int, int], int | None]) -> Callable[[TableSizes], int]:
    """Return the bytes that all clients send by a method's formula of numbers."""
    return lambda sizes: BYTES_PER_NUMBER * (formula(sizes.rows, sizes.clients, sizes.classes, sizes.feature_dim) or 0)


def _slora_bytes(sizes: TableSizes) -> int:
    """SLoRA by equation 7: a tenth of the parameters travels for a fifth of the rounds, then adapters do.

    Unlike the others, the equation counts one way. The thesis's own number (69 GB) does not follow from it.
    """
    sparse_rounds = round(0.2 * sizes.rounds)
    sparse = sparse_rounds * round(0.1 * sizes.parameters)
    return BYTES_PER_NUMBER * sizes.clients * (sparse + (sizes.rounds - sparse_rounds) * sizes.adapter_parameters)


def _prompt_bytes(sizes: TableSizes) -> int:
    """FedCOF's appendix H: 2 (d C T + d sum_i P_i) s numbers, of a linear head without a bias and the pool."""
    return training_bytes(1, sizes.clients, sizes.feature_dim * (sizes.classes * sizes.rounds + sizes.prompts))


_LOCAL_HEADS = uplink_formula(lambda M, K, C, d: K * C * (d + 1))
_CLASS_COVARIANCES = uplink_formula(lambda M, K, C, d: M * (d + d**2))

_OF_PAPERS = {name: kind for name, kind in METHODS.items() if kind.uplink is not Method.uplink}
FORMULAS: dict[str, Callable[[TableSizes], int]] = {
    **{name: uplink_formula(kind.default().uplink) for name, kind in _OF_PAPERS.items()},
    "ccvr": _CLASS_COVARIANCES,
    "fedpft": lambda sizes: (
        BYTES_PER_NUMBER * sizes.clients * sizes.classes * sizes.components * (2 * sizes.feature_dim + 1)
    ),
    "one-shot-fedavg": _LOCAL_HEADS,
    "ensemble": _LOCAL_HEADS,
    "fedavg": lambda sizes: training_bytes(sizes.rounds, sizes.clients, sizes.parameters),
    "lora": lambda sizes: training_bytes(sizes.rounds, sizes.clients, sizes.adapter_parameters),
    "slora": _slora_bytes,
    "pfpt": _prompt_bytes,
    "fedmezo": lambda sizes: mezo_bytes(sizes.rounds, sizes.clients, sizes.directions),
}


def formula_bytes(method: str, sizes: TableSizes) -> int:
    """Return the bytes of all clients and rounds together by a method's formula.

    Parameters
    ----------
    method : str
        One of :data:`FORMULAS`: a method's name; ccvr (a covariance for every class and client);
        fedpft; one-shot-fedavg and ensemble (of heads with a bias); fedavg (any model, so also a probe or an MLP
        head); lora, slora; pfpt (also FedAvg-PT and FedProx-PT); fedmezo.
    sizes : TableSizes
        Of the run.

    Returns
    -------
    int
        Up for what takes one round and for SLoRA, else up and down.

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
