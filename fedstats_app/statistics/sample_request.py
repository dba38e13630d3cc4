"""What every request that is about a client's samples says."""

from __future__ import annotations

from dataclasses import dataclass, field

# A node works for any server it is connected to: what a request can make it allocate is bounded.
MAX_CLASSES = 1_000_000


@dataclass(frozen=True)
class SampleRequest:
    """What every request that is about a client's samples says.

    Attributes
    ----------
    num_classes : int
        C.
    seed : int
        Draws which samples are held out, and whatever else the request draws.
    holdout : float
        Share of its samples that a client keeps for evaluation, 0 for none.
    backbone_fingerprint : str
        Of the server's backbone and transform, or "" if there is none to compare with.
    class_names : tuple of str
        The classes in the order of their ids, or empty where ids are agreed on otherwise.
    """

    num_classes: int
    seed: int = field(default=0, kw_only=True)
    holdout: float = field(default=0.0, kw_only=True)
    backbone_fingerprint: str = field(default="", kw_only=True)
    class_names: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if not 1 <= self.num_classes <= MAX_CLASSES:
            raise ValueError(f"num_classes must lie in [1, {MAX_CLASSES}], got {self.num_classes}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}")
        if not 0.0 <= self.holdout < 1.0:
            raise ValueError(f"holdout must lie in [0, 1), got {self.holdout}")
        if self.class_names and len(self.class_names) != self.num_classes:
            raise ValueError(f"class_names must name all {self.num_classes} classes, got {len(self.class_names)}")
