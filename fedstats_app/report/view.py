"""A head in words, with units and intervals: what terminal, page and card all print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedstats_app.methods import display_name, head_parts
from fedstats_app.report.text_columns import area, bytes_with_unit, interval_text, percent, three_figures


@dataclass(frozen=True)
class MethodView:
    """A closed-form or trained head in words; "-" for what is not known.

    Attributes
    ----------
    name, title : str
        As in results.json, and for people.
    accuracy, interval, balanced, f1 : str
        With per cent signs, but the interval.
    auroc : str
        0 to 1.
    each, all : str
        Bytes that one site sent, a mean, and all of them, with their unit.
    megabytes : str
        All of them in units of 10^6 bytes.
    solve, ridge, condition, regulariser : str
        Seconds; what was added to the diagonal in all; the condition number of what was solved; in words.
    """

    name: str
    title: str
    accuracy: str
    interval: str
    balanced: str
    f1: str
    auroc: str
    each: str
    all: str
    megabytes: str
    solve: str
    ridge: str
    condition: str
    regulariser: str

    @classmethod
    def of(cls, name: str, entry: Mapping[str, Any], num_sent: int = 0) -> MethodView:
        """Write what an entry of results.json says, with the number of sites that sent the bytes."""
        method, stage = head_parts(name)
        # Of a training, results.json has the bytes up and down, its start's included.
        sent, solve = entry.get("wire_bytes", entry.get("bytes")), entry.get("solve_seconds")
        return cls(
            name=name,
            title=display_name(method) + (f", then {stage}" if stage else ""),
            accuracy=percent(entry.get("accuracy")),
            interval=interval_text(entry.get("accuracy_interval")) or "-",
            balanced=percent(entry.get("macro_accuracy")),
            f1=percent(entry.get("macro_f1")),
            auroc=area(entry.get("macro_auroc")),
            each="-" if sent is None or not num_sent else bytes_with_unit(sent / num_sent),
            all="-" if sent is None else bytes_with_unit(sent),
            megabytes="-" if sent is None else three_figures(sent / 1e6),
            solve="-" if solve is None else f"{solve:.2f}",
            ridge="-" if entry.get("ridge_effective") is None else f"{float(entry['ridge_effective']):.3g}",
            condition="-" if entry.get("condition_number") is None else f"{float(entry['condition_number']):.1e}",
            regulariser=entry.get("regulariser") or "-",
        )
