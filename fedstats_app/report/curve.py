"""What a method would have scored for more bytes or fewer: points beside the one that the run solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True)
class CurvePoint:
    """One method at one setting of how much clients send: an entry under `curve` in results.json.

    Attributes
    ----------
    rank : str
        The setting in words, such as `sqrt(n)`.
    wire_bytes : int
        Bytes from all clients as sent.
    accuracy : float
        Share of test samples classified correctly, 0 to 1.
    """

    rank: str
    wire_bytes: int
    accuracy: float

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
        if not self.wire_bytes >= 0:
            raise ValueError(f"rank {self.rank}: wire_bytes must be at least 0, got {self.wire_bytes}")
        if not 0.0 <= self.accuracy <= 1.0:
            raise ValueError(f"rank {self.rank}: accuracy must be between 0 and 1, got {self.accuracy}")

    def to_json(self) -> dict[str, object]:
        """Return the entry for results.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave."""
        return cls(entry["rank"], entry["wire_bytes"], entry["accuracy"])
