"""Figures of trainings from a head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedstats_app.methods import display_name, method_order
from fedstats_app.report.plots.style import (
    METHOD_COLOURS,
    MUTED,
    PER_CENT,
    drawable,
    log_x,
    new_figure,
    plot_style,
    quiet_axes,
    shortened,
)
from fedstats_app.report.training_record import RANDOM_START, TrainingResult

_LINES = ("-", "--", "-.")  # of curves of one colour
# Headings and units of a stage's panels: the costs on their x axes.
_PANELS = (
    ("round (one aggregation)", ""),
    ("up and down, all sites (log scale)", "B"),
    ("forward passes of a sample (log scale)", ""),
)


@dataclass(frozen=True, eq=False)
class _Curve:
    """Mean over seeds of the trainings of one name, after each round that was evaluated in all of them.

    Accuracies and their standard deviations (with n - 1, 0 for one seed) are per cent. Costs are the round's number,
    and the means of the bytes up and down and of the forward passes until then, the start's included.
    """

    first: TrainingResult
    num_seeds: int
    costs: tuple[NDArray[np.float64], ...]
    accuracy: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @property
    def is_solved(self) -> bool:
        """Return whether the head to start from was solved."""
        return self.first.start not in (RANDOM_START, "zero")


def _curves(results: Iterable[TrainingResult]) -> list[_Curve]:
    by_name: dict[str, list[TrainingResult]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    curves = []
    for seeds in by_name.values():
        points = []
        for seed in seeds:
            costs = zip(seed.rounds, seed.cumulative_bytes(), seed.cumulative_forward_passes(), strict=True)
            points.append({r.round: (r.accuracy, sent, passes) for r, sent, passes in costs if r.accuracy is not None})
        rounds = sorted(set.intersection(*map(set, points)))
        values = np.array([[seed[number] for number in rounds] for seed in points], float).reshape(len(seeds), -1, 3)
        accuracy, *costs = values.mean(axis=0).T
        deviation = values[..., 0].std(axis=0, ddof=1) if len(seeds) > 1 else 0 * accuracy
        curves.append(_Curve(seeds[0], len(seeds), (np.array(rounds), *costs), 100 * accuracy, 100 * deviation))
    return [curve for curve in curves if len(curve.accuracy)]


@plot_style()
def training_figure(results: Sequence[TrainingResult], title: str) -> Figure:
    """Draw accuracy over rounds, bytes (log) and forward passes (log), a row of panels for every stage.

    A training's curve begins with a star where its head was solved; those of heads that were not are grey and may begin
    below the panel. Trainings of one name are the seeds of one experiment: the line is their mean, the band one
    standard deviation to both sides. At least one has an accuracy.
    """
    curves = _curves(results)
    stages = {curve.first.stage: curve.first.display_name or curve.first.stage for curve in curves}
    figure = new_figure(11.0, 1.3 + 3.1 * len(stages))
    rows = figure.subplots(len(stages), len(_PANELS), squeeze=False, sharey="row")
    for row, (stage, heading) in zip(rows, stages.items(), strict=True):
        _draw_stage(row, [curve for curve in curves if curve.first.stage == stage])
        row[0].set_title(heading, loc="left", fontsize=10, color=MUTED)
    figure.suptitle(drawable(title), x=0.012, ha="left", fontsize=12, fontweight="bold")
    lines = {line.get_label(): line for axes in rows[:, 0] for line in axes.get_legend_handles_labels()[0]}
    seeds = max(curve.num_seeds for curve in curves)
    note = "star: the head as solved" + (f"; mean of {seeds} seeds, band: one standard deviation" if seeds > 1 else "")
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, title=note, title_fontsize=9)
    return figure


def _draw_stage(row: Sequence[Axes], curves: Sequence[_Curve]) -> None:
    for panel, (axes, (heading, unit)) in enumerate(zip(row, _PANELS, strict=True)):
        drawn = Counter[str]()
        for curve in curves:
            costs, accuracy, deviation = curve.costs[panel], curve.accuracy, curve.deviation
            colour = METHOD_COLOURS[method_order(curve.first.start) % 7] if curve.is_solved else MUTED
            line = _LINES[drawn[colour] % len(_LINES)] if curve.is_solved else ":"
            drawn[colour] += 1
            axes.plot(costs, accuracy, line, color=colour, linewidth=1.7, label=_label(curve))
            axes.fill_between(costs, accuracy - deviation, accuracy + deviation, color=colour, alpha=0.2, linewidth=0)
            if curve.is_solved and curve.costs[0][0] == 0:
                star: dict[str, Any] = {"markersize": 13.0, "markeredgecolor": "white", "zorder": 9.0}
                axes.plot(costs[0], accuracy[0], "*", color=colour, **star)
        axes.set_xlabel(heading)
        quiet_axes(axes, "y")
        if panel:
            log_x(axes, [cost for curve in curves for cost in curve.costs[panel] if cost > 0] or [1.0], unit)
    solved = [curve for curve in curves if curve.is_solved] or curves
    shown = [*(score for curve in solved for score in curve.accuracy), *(curve.accuracy.max() for curve in curves)]
    margin = max(0.3 * (max(shown) - min(shown)), 1.0)
    row[0].set_ylim(min(shown) - margin, max(shown) + margin / 3)
    row[0].set_ylabel("test accuracy")
    row[0].yaxis.set_major_formatter(PER_CENT)
    row[0].xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _label(curve: _Curve) -> str:
    """Give the start's name, or the training's if that is not made of start and stage."""
    first = curve.first
    if first.name != f"{first.start}-{first.stage}":
        return shortened([first.name], 32)[0]
    return display_name(first.start) if curve.is_solved else f"{first.start} head"
