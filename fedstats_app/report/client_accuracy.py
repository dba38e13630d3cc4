"""How much a head's accuracy differs between the clients that evaluated it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ClientAccuracy:
    """The accuracies of one head on what each client kept for evaluation, every client counting once.

    Attributes
    ----------
    mean, minimum, maximum : float
        Over clients, 0 to 1. The mean weighs a client with few samples as much as one with many.
    std : float or None
        Standard deviation over clients, with n - 1; None with one client.
    by_client : dict
        From client to its accuracy.
    """

    mean: float
    minimum: float
    maximum: float
    std: float | None
    by_client: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, by_client: Mapping[int, float]) -> ClientAccuracy | None:
        """Return what is to be said of these accuracies; None without any."""
        if not by_client:
            return None
        values = [by_client[client] for client in sorted(by_client)]
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), min(values), max(values), std, dict(sorted(by_client.items())))

    def to_json(self) -> dict[str, object]:
        """Give the entry for results.json, where clients are strings."""
        return {**asdict(self), "by_client": {str(client): value for client, value in self.by_client.items()}}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> ClientAccuracy:
        """Read what :meth:`to_json` gave."""
        return cls(**{**entry, "by_client": {int(client): value for client, value in entry["by_client"].items()}})
