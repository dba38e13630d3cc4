"""Figures of trainings from a head, and of the clients' own models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedstats_app.methods import display_name, method_order
from fedstats_app.report.plots.style import (
    INK,
    METHOD_COLOURS,
    MUTED,
    drawable,
    log_x,
    new_figure,
    per_cent,
    plot_style,
    quiet_axes,
    set_title,
    shortened,
)
from fedstats_app.report.training_record import RANDOM_START, TrainingCurve, TrainingResult, training_curves

_MADE = (RANDOM_START, "zero")  # heads that nothing was solved for
_LINES = ("-", "--", "-.")  # of curves of one colour
_PANELS: tuple[tuple[str, str, Callable[[TrainingCurve], Sequence[float]]], ...] = (
    ("round (one aggregation)", "", lambda curve: curve.rounds),
    ("up and down, all clients (log scale)", "B", lambda curve: [1e6 * sent for sent in curve.megabytes]),
    ("forward passes of a sample (log scale)", "", lambda curve: curve.forward_passes),
)


@plot_style()
def training_figure(results: Sequence[TrainingResult], title: str) -> Figure:
    """Draw accuracy over rounds, bytes (log) and forward passes (log), a row of panels for every stage.

    A training's curve begins with a star where its head was solved; those of heads that were not are grey and may begin
    below the panel. Trainings of one name are the seeds of one experiment: the line is their mean, the band one
    standard deviation to both sides.

    Parameters
    ----------
    results : sequence of TrainingResult
        At least one with an accuracy; trainings of one name have the same stage and start.
    title : str
        Such as dataset, backbone and number of clients.
    """
    curves = [curve for curve in training_curves(results) if curve.rounds]
    stages = {curve.stage: curve.title for curve in curves}
    figure = new_figure(11.0, 1.3 + 3.1 * len(stages))
    rows = figure.subplots(len(stages), len(_PANELS), squeeze=False, sharey="row")
    for row, (stage, heading) in zip(rows, stages.items(), strict=True):
        _draw_stage(row, [curve for curve in curves if curve.stage == stage])
        row[0].set_title(heading, loc="left", fontsize=10, color=MUTED)
    figure.suptitle(drawable(title), x=0.012, ha="left", fontsize=12, fontweight="bold")
    lines = {line.get_label(): line for axes in rows[:, 0] for line in axes.get_legend_handles_labels()[0]}
    seeds = max(curve.num_seeds for curve in curves)
    note = "star: the head as solved" + (f"; mean of {seeds} seeds, band: one standard deviation" if seeds > 1 else "")
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, title=note, title_fontsize=9)
    return figure


def _draw_stage(row: Sequence[Axes], curves: Sequence[TrainingCurve]) -> None:
    for axes, (heading, unit, costs_of) in zip(row, _PANELS, strict=True):
        drawn = Counter[str]()
        for curve in curves:
            costs, accuracy, deviation = (np.array(one) for one in (costs_of(curve), curve.accuracy, curve.deviation))
            colour = MUTED if curve.start in _MADE else METHOD_COLOURS[method_order(curve.start) % 7]
            line = ":" if curve.start in _MADE else _LINES[drawn[colour] % len(_LINES)]
            drawn[colour] += 1
            axes.plot(costs, 100 * accuracy, line, color=colour, linewidth=1.7, label=_label(curve))
            low, high = 100 * (accuracy - deviation), 100 * (accuracy + deviation)
            axes.fill_between(costs, low, high, color=colour, alpha=0.2, linewidth=0)
            if curve.start not in _MADE and curve.rounds[0] == 0:
                star: dict[str, Any] = {"markersize": 13.0, "markeredgecolor": "white", "zorder": 9.0}
                axes.plot(costs[0], 100 * accuracy[0], "*", color=colour, **star)
        axes.set_xlabel(heading)
        quiet_axes(axes, "y")
        if axes is not row[0]:
            log_x(axes, [cost for curve in curves for cost in costs_of(curve) if cost > 0] or [1.0], unit)
    solved = [curve for curve in curves if curve.start not in _MADE] or curves
    shown = [*(score for curve in solved for score in curve.accuracy), *(max(curve.accuracy) for curve in curves)]
    margin = max(0.3 * (max(shown) - min(shown)), 0.01)
    row[0].set_ylim(100 * (min(shown) - margin), 100 * (max(shown) + margin / 3))
    row[0].set_ylabel("test accuracy")
    row[0].yaxis.set_major_formatter(per_cent)
    row[0].xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _label(curve: TrainingCurve) -> str:
    """Give the start's name, or the training's if that is not made of start and stage."""
    if curve.name != f"{curve.start}-{curve.stage}":
        return shortened([curve.name], 32)[0]
    return f"{curve.start} head" if curve.start in _MADE else display_name(curve.start)


@plot_style()
def personal_figure(accuracies: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Draw one box of clients' accuracies per approach, with a dot per client.

    Parameters
    ----------
    accuracies : mapping of str to sequence of float
        From an approach, as it is to be shown, to its clients' accuracies, 0 to 1; approaches without any are left out.
    title : str
        Such as dataset, backbone and number of clients.
    """
    rows = {name: 100 * np.array(values) for name, values in accuracies.items() if len(values)}
    figure = new_figure(8.0, 1.6 + 0.42 * len(rows))
    axes = figure.add_subplot()
    places = range(len(rows))
    look: dict[str, Any] = {"widths": 0.6, "whis": (0, 100), "showfliers": False}
    axes.boxplot(list(rows.values()), positions=places, orientation="horizontal", **look)
    for place, values in zip(places, rows.values(), strict=True):
        heights = place + np.linspace(-0.25, 0.25, len(values))
        axes.plot(values, heights, "o", markersize=3.2, alpha=0.45, color=METHOD_COLOURS[0], markeredgewidth=0)
        axes.plot(values.mean(), place, "D", markersize=5.5, color=INK, markeredgecolor="white")
        mean, at = f"{values.mean():.1f} ± {values.std():.1f}", (1.01, place)
        axes.text(*at, mean, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    axes.set_yticks(places, shortened(list(rows), 30))
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(per_cent)
    axes.set_xlabel("accuracy on the client's own test samples")
    quiet_axes(axes, "x")
    subtitle = "one dot per client; box: quartiles and median; diamond: mean; right: mean ± deviation over clients"
    set_title(axes, title, subtitle, inches=6.4)
    return figure
