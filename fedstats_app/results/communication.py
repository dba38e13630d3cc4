"""Uplink cost of the closed-form methods, as their papers count it.

Numbers sent by all clients together, four bytes each; headers, counts (but FedCGS's) and downlink are left out.
Sources: FedCOF, tables 3, 8 and 9; FedCGS, its parameter counts. What went over the wire is measured
and reported apart from it.
"""

from collections.abc import Callable

from fedstats_app.methods import RECORDS, ConfiguredMethod
from fedstats_app.outcomes.compute import BYTES_PER_NUMBER, product

# M: (class, mean) rows of all clients; K: clients whose statistics were merged; C: classes; d: feature dimension.
_NUMBERS_SENT: dict[str, Callable[[int, int, int, int], int]] = {
    **{name: method.uplink for name, method in RECORDS.items() if method.uplink is not None},
    "ccvr": lambda M, K, C, d: M * (d + d**2),
}


def uplink_bytes(
    method: str | ConfiguredMethod, *, num_rows: int, num_clients: int, num_classes: int, feature_dim: int
) -> int:
    """Bytes that all clients together send to the server, by the papers' formulas.

    Parameters
    ----------
    method : str or ConfiguredMethod
        A method's name or ccvr; or a method with the options on which its formula depends.
    num_rows : int
        M, the number of (client, class) pairs with samples, or of means where a client sends several per class.
    num_clients : int
        K, the number of clients whose statistics were merged.
    num_classes : int
        C, all classes, present or not.
    feature_dim : int
        d, the length of what the statistics are taken of (after a feature map, if there is one).

    Returns
    -------
    int
        Bytes, four per number.

    Raises
    ------
    ValueError
        If the method is unknown or a size is negative.
    """
    name = method if isinstance(method, str) else method.name
    numbers = _NUMBERS_SENT.get(name) if isinstance(method, str) else method.uplink
    if numbers is None:
        raise ValueError(f"method: no uplink formula for {name!r}; there is one for {', '.join(_NUMBERS_SENT)}")
    product(num_rows=num_rows, num_clients=num_clients, num_classes=num_classes, feature_dim=feature_dim)
    return BYTES_PER_NUMBER * numbers(num_rows, num_clients, num_classes, feature_dim)
