"""Number of directions of its scatter that a client sends: a rule that needs no knowledge of other clients.

Only the standard library is imported here.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

_NUMBER = r"(\d+(?:\.\d+)?)"
_BYTES = {"KB": 1_000, "MB": 1_000_000}
_LARGEST = 10**12
ALLOWED = 'full, "sqrt(n)" or a multiple ("0.5 sqrt(n)"), a share of the energy ("90%"), a number, or bytes ("200KB")'


class OverBudget(ValueError):
    """A client's rows alone take more bytes than its reply may; the message says how many, and how many are allowed."""


@dataclass(frozen=True)
class RankRule:
    """A rule for the rank k, written as one string; n is the client's number of samples.

    ``"0.5 sqrt(n)"``: k = round(n^(1/2) / 2). ``"90%"``: the least k that keeps this share of the energy. ``"64"``:
    this number. ``"full"``: all. ``"200KB"``, ``"1.5MB"``: the largest k with which the client's whole reply takes no
    more bytes, a KB being 1,000. Never more than there is.

    Attributes
    ----------
    kind : {"root", "share", "number", "full", "bytes"}
        Which of these.
    amount : float
        The factor of the root, the share in (0, 1], the number, or the bytes; 0 for "full".
    """

    kind: Literal["root", "share", "number", "full", "bytes"]
    amount: float = 0.0

    def __post_init__(self) -> None:
        low = 0.0 if self.kind in ("root", "number", "full") else math.nextafter(0.0, 1.0)
        high = 1.0 if self.kind == "share" else _LARGEST
        if not low <= self.amount <= high:
            raise ValueError(f"must be {ALLOWED}")

    @classmethod
    def parse(cls, text: str) -> RankRule:
        """Return the rule that a string says.

        Raises
        ------
        ValueError
            If it says none.
        """
        text = text.strip()
        if text == "full":
            return cls("full")
        if found := re.fullmatch(rf"(?:{_NUMBER} ?\*? ?)?sqrt\(n\)", text):
            return cls("root", float(found[1] or 1.0))
        if found := re.fullmatch(rf"{_NUMBER} ?%", text):
            return cls("share", float(found[1]) / 100.0)
        if found := re.fullmatch(rf"{_NUMBER} ?(KB|MB)", text):
            return cls("bytes", float(found[1]) * _BYTES[found[2]])
        if re.fullmatch(r"\d{1,12}", text):
            return cls("number", float(text))
        raise ValueError(f"must be {ALLOWED}")

    def __str__(self) -> str:
        """Return the string that :meth:`parse` makes the rule of."""
        if self.kind == "full":
            return "full"
        if self.kind == "root":
            return "sqrt(n)" if self.amount == 1.0 else f"{self.amount:.12g} sqrt(n)"
        if self.kind == "share":
            return f"{100.0 * self.amount:.12g}%"
        return f"{self.amount / 1_000:.12g}KB" if self.kind == "bytes" else f"{self.amount:.0f}"

    def rank(
        self,
        num_samples: int,
        full_rank: int,
        reply_bytes: Callable[[int], int],
        energies: Sequence[float] | None = None,
    ) -> int:
        """Return k of a client with n samples that has this number of directions.

        `reply_bytes` gives the bytes of the client's whole reply by k, not falling. Without the energies of the
        directions, falling, a share of the energy is taken to need all.
        """
        if (most := self.most(num_samples)) is not None:
            return min(most, full_rank)
        if self.kind == "share" and energies is not None:
            kept = itertools.accumulate(energies, initial=0.0)
            wanted = self.amount * math.fsum(energies)
            return next((rank for rank, sum_ in enumerate(kept) if sum_ >= wanted), len(energies))
        if self.kind == "bytes":
            # The first k, from 1 on, that is too large: all smaller ones fit.
            return bisect.bisect_right(range(1, full_rank + 1), self.amount, key=reply_bytes)
        return full_rank

    def most(self, num_samples: int) -> int | None:
        """Return what k is at most, whatever there is to send; None where energies or bytes decide."""
        if self.kind == "root":
            return round(self.amount * math.sqrt(num_samples))
        return int(self.amount) if self.kind == "number" else None

    def check_fits(self, num_bytes: int) -> None:
        """Refuse a reply that is too large though it has no direction of the scatter.

        Raises
        ------
        OverBudget
            Saying how many bytes are allowed, and how many there are.
        """
        if self.kind == "bytes" and num_bytes > self.amount:
            raise OverBudget(
                f"a reply must take at most {self.amount:,.0f} bytes (rank {self}), "
                f"got {num_bytes:,} without any direction of the scatter"
            )


def rank_rule(value: object) -> str:
    """Check for a rule, as an option: return its string, always the same for the same rule.

    Raises
    ------
    ValueError
        If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"must be {ALLOWED}")
    return str(RankRule.parse(str(value)))
