"""What became of one client's request for statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ClientOutcome:
    """What became of one client's request.

    Attributes
    ----------
    client : int
        Client id: the node id with a plain Grid, else as :class:`ClientGrid` numbers them.
    server_round : int
        In which it was asked.
    outcome : str
        "merged"; "known" (its very statistics are in those of the run that this one extends); "refused" (by its owner's
        policy); "failed" (it said so, or no reply came in time); "rejected" (its reply must not be used).
    reason : str
        Why, where it was not merged.
    num_examples, num_unreadable, wire_bytes : int
        Of a merged reply; of a known client its samples only.
    seconds : float
        Time the client says it took.
    engine : str
        What computed its features, as the client says: "torch", "openvino" or "openvino-bf16"; "" where it does not.
    num_suppressed_classes : int
        Classes that the client says it left out because it has few samples of them.
    warning : str
        What its owner should know of a merged reply.
    share : float
        Of all samples in the heads, of a merged reply.
    class_shares : mapping
        From the name of every class that it has to its share of that class's samples.
    times_usual_spread : float or None
        How many times as far as is usual its class means or samples are spread
        (:func:`fedstats_app.heads.influence.spreads`); None where that was not measured.
    """

    client: int
    server_round: int
    outcome: str
    reason: str = ""
    num_examples: int = 0
    num_unreadable: int = 0
    wire_bytes: int = 0
    seconds: float = 0.0
    engine: str = ""
    num_suppressed_classes: int = 0
    warning: str = ""
    share: float = 0.0
    class_shares: Mapping[str, float] = field(default_factory=dict)
    times_usual_spread: float | None = None

    @property
    def in_heads(self) -> bool:
        """Whether the client's statistics are in the heads."""
        return self.outcome in ("merged", "known")

    def to_json(self) -> dict[str, object]:
        """Return the attributes as plain values."""
        return {**vars(self)}
