"""Accuracy of one approach to personal models, client by client, and its cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fedstats_app.methods import display_name

_NAMES = {"local-only": "local training only", "one-shot": "FedCGS one-shot"}


@dataclass(frozen=True)
class PersonalResult:
    """One approach's part of a comparison. Accuracies are those of a client's model on the client's own test samples.

    Attributes
    ----------
    approach : str
        Name, such as "one-shot".
    num_correct, num_test : dict
        From every client that answered and has test samples to how many of these it predicts right, and has.
    failures : dict
        From every client that was dropped to the reason.
    bytes_down, bytes_up : int
        Of the arrays (and, up, of the metrics) of all clients and rounds, failed clients' downloads included.
    forward_passes : int
        Compute of all clients, a backward pass counting as two; that of the statistics, which the run needs anyway, is
        not in it.
    seconds : float
        Wall-clock time of the whole approach.
    mixing : dict
        From client to the weight of its own statistics, for the closed form.
    """

    approach: str
    num_correct: Mapping[int, int]
    num_test: Mapping[int, int]
    failures: Mapping[int, str] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    forward_passes: int = 0
    seconds: float = 0.0
    mixing: Mapping[int, float] = field(default_factory=dict)

    @property
    def accuracies(self) -> dict[int, float]:
        """From client to accuracy, 0 to 1, in the order of the clients."""
        return {client: self.num_correct[client] / self.num_test[client] for client in sorted(self.num_test)}

    @property
    def mean(self) -> float:
        """Mean of the clients' accuracies, every client counting alike (the papers' number); NaN without clients."""
        return statistics.fmean(self.accuracies.values()) if self.num_test else math.nan

    @property
    def std(self) -> float:
        """Standard deviation of the clients' accuracies about their mean (divided by their number)."""
        return statistics.pstdev(self.accuracies.values()) if self.num_test else math.nan

    @property
    def weighted_mean(self) -> float:
        """Share of all clients' test samples predicted right; NaN without samples."""
        total = sum(self.num_test.values())
        return sum(self.num_correct.values()) / total if total else math.nan

    def to_json(self) -> dict[str, object]:
        """Return the entry for results.json, without the approach's name, which is its key there."""
        return {
            "accuracy_mean": self.mean,
            "accuracy_std": self.std,
            "accuracy_weighted": self.weighted_mean,
            "num_clients": len(self.num_test),
            "accuracies": {str(client): accuracy for client, accuracy in self.accuracies.items()},
            "num_test": {str(client): self.num_test[client] for client in sorted(self.num_test)},
            "failures": {str(client): reason for client, reason in self.failures.items()},
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "forward_passes": self.forward_passes,
            "seconds": round(self.seconds, 3),
            "mixing": {str(client): mixing for client, mixing in self.mixing.items()},
        }

    @classmethod
    def from_json(cls, approach: str, entry: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_json` gave, under its key."""

        def by_client(name: str) -> dict[int, Any]:
            return {int(client): value for client, value in entry[name].items()}

        num_test = by_client("num_test")
        correct = {client: round(share * num_test[client]) for client, share in by_client("accuracies").items()}
        costs = {name: entry[name] for name in ("bytes_down", "bytes_up", "forward_passes", "seconds")}
        return cls(approach, correct, num_test, by_client("failures"), **costs, mixing=by_client("mixing"))


def approach_name(approach: str) -> str:
    """Spell an approach for people: "closed form, Fed3R" for `closed-form-fed3r`; an unknown name stays as it is."""
    for prefix, words in (("global-", "global head, "), ("closed-form-", "closed form, ")):
        if approach.startswith(prefix):
            return words + display_name(approach.removeprefix(prefix))
    return _NAMES.get(approach, approach)
