"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor.

    Attributes
    ----------
    check : str
        What was looked at, in a word or two.
    level : {"ok", "warning", "FAIL"}
        FAIL: a run would not work like this.
    message : str
        What was found.
    advice : str
        What to do; "" where there is nothing to do.
    """

    check: str
    level: Level
    message: str
    advice: str = ""
