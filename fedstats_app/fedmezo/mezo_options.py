"""Options of FedMeZO. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedstats_app.base.option import Options, number, one_of, option, whole

# Parts that can be tuned, besides names:PATTERN,...
TUNED_PARTS = ("head", "full", "bias", "norm")


def tuned_part(value: object) -> object:
    """Check an option that names the part of the model to be tuned."""
    patterns = str(value).removeprefix("names:").split(",")
    by_name = str(value).startswith("names:") and all(pattern.strip() for pattern in patterns)
    if value not in TUNED_PARTS and not by_name:
        raise ValueError(f"must be one of {', '.join(TUNED_PARTS)}, or names:PATTERN,PATTERN,...")
    return value


@dataclass(frozen=True)
class FedMeZOOptions(Options):
    """FedMeZO: the tuned part, its probes, and the use of the clients' scalars."""

    table: ClassVar[str] = "fedmezo"

    tune: str = option("head", tuned_part, "head | full | bias | norm (those and the head) | names:PATTERN,...")
    num_z: int = option(1, whole(1, 1024), "directions of a round")
    directions: Literal["rademacher", "gaussian"] = option(
        "rademacher", one_of("rademacher", "gaussian"), "rademacher (signs) | gaussian"
    )
    weighting: Literal["examples", "uniform"] = option(
        "examples", one_of("examples", "uniform"), "examples | uniform (algorithm 2 of the thesis)"
    )
    batch_size: int = option(0, whole(0, 1_000_000), "samples drawn for each direction; 0 = all samples")
    clip: float = option(3.0, number(0.0), "scalars are cut at this many times the recent median; 0 = never")
