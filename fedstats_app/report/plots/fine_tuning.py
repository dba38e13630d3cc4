"""Accuracy of trainings against rounds, megabytes and forward passes, from the closed-form head on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from fedstats_app.methods import METHODS, display_name
from fedstats_app.report.plots.style import (
    METHOD_COLOURS,
    MUTED,
    log_ticks,
    new_figure,
    per_cent,
    plot_style,
    quiet_axes,
    save_png,
    shortened,
)
from fedstats_app.report.training_record import RANDOM_START, TrainingCurve, TrainingResult, training_curves

_PANEL_WIDTH = 11.0 / 3
# Those of the plot of accuracy against bytes, where the methods come in this order.
_COLOURS = dict(zip(METHODS, METHOD_COLOURS, strict=False))
_MADE = (RANDOM_START, "zero")  # heads that nothing was solved for
_DASHES: dict[str, Any] = {RANDOM_START: (0, (1, 1.2)), "zero": (0, (4, 1.5, 1, 1.5))}

_PANELS: tuple[tuple[str, Callable[[TrainingCurve], Sequence[float]]], ...] = (
    ("round (one aggregation)", lambda curve: curve.rounds),
    ("up and down, all clients (MB, log scale)", lambda curve: curve.megabytes),
    ("forward passes of a sample (log scale)", lambda curve: curve.forward_passes),
)


def plot_training(results: Sequence[TrainingResult], path: Path, title: str = "Training from each head") -> None:
    """Draw accuracy over rounds, megabytes (log) and, if training makes any, forward passes (log).

    Every stage has a row of panels.

    A training's curve begins with a star where its head was solved; those from a random head are grey and dotted, and
    enter from below where they start far under all others. Trainings of one name are the seeds of one experiment: the
    line is their mean, the band one standard deviation to both sides.

    Parameters
    ----------
    results : sequence of TrainingResult
        At least one with an accuracy.
    path : Path
        PNG file to write.
    title : str
        Such as dataset, backbone and number of clients.

    Raises
    ------
    ValueError
        If no training was evaluated, or trainings of one name differ in stage or start.
    """
    with plot_style():
        save_png(training_figure(results, title), path)


def training_figure(results: Sequence[TrainingResult], title: str) -> Figure:
    """Build the figure; call it within `plot_style`."""
    curves = [curve for curve in training_curves(results) if curve.rounds]
    if not curves:
        raise ValueError("training curves: at least one training must have been evaluated, got none that was")
    stages = {curve.stage: curve.title for curve in curves}
    colours = _colours(curves)
    panels = _PANELS if any(map(_makes_passes, curves)) else _PANELS[:-1]
    figure = new_figure(_PANEL_WIDTH * len(panels), 1.3 + 3.1 * len(stages))
    rows = figure.subplots(len(stages), len(panels), squeeze=False, sharey="row")
    for row, stage in zip(rows, stages, strict=True):
        _draw_stage(list(row), [curve for curve in curves if curve.stage == stage], colours)
        row[0].set_title(stages[stage], loc="left", fontsize=10, color=MUTED)
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, fontweight="bold")
    _add_legend(figure, curves, colours)
    return figure


def _makes_passes(curve: TrainingCurve) -> bool:
    """Return whether training goes on making passes; on cached features the line over them is a vertical one."""
    passes = curve.forward_passes
    # A made head's training fills the cache first.
    return passes[-1] > (1.2 * passes[len(passes) // 2] if curve.start in _MADE else passes[0])


def _label(curve: TrainingCurve) -> str:
    """Give the start's name, or the whole where the training is called otherwise than start and stage."""
    if curve.name != f"{curve.start}-{curve.stage}":
        return shortened([curve.name], 32)[0]
    return f"{curve.start} head" if curve.start in _MADE else display_name(curve.start)


def _colours(curves: Sequence[TrainingCurve]) -> dict[str, str]:
    """Give every label its colour, the methods theirs."""
    colours: dict[str, str] = {}
    for curve in curves:
        label = _label(curve)
        if curve.start in _MADE:
            colours[label] = MUTED
        elif label not in colours:
            own = _COLOURS.get(curve.start)
            free = [colour for colour in METHOD_COLOURS if colour not in colours.values()]
            others = [colour for colour in free if colour not in _COLOURS.values()] or free or list(METHOD_COLOURS)
            colours[label] = own if own in free else others[0]
    return colours


def _draw_stage(row: list[Axes], curves: Sequence[TrainingCurve], colours: dict[str, str]) -> None:
    for axes in row[1:]:
        axes.set_xscale("log")
    for axes, (name, costs) in zip(row, _PANELS, strict=False):
        for order, curve in enumerate(curves):
            _draw(axes, curve, np.array(costs(curve), dtype=float), colours[_label(curve)], order)
        axes.set_xlabel(name)
        quiet_axes(axes, "y")
    row[0].set_ylim(*_accuracy_limits(curves))
    row[0].set_ylabel("test accuracy")
    row[0].yaxis.set_major_formatter(per_cent)
    row[0].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes, (_, costs) in zip(row[1:], _PANELS[1:], strict=False):
        _limit_log_axis(axes, [cost for curve in curves for cost in costs(curve) if cost > 0])
    solved = [curve for curve in curves if curve.start not in _MADE and len(curve.rounds) > 1]
    if solved and all(curve.forward_passes[-1] == curve.forward_passes[0] for curve in solved):
        note = "cached features:\ntraining makes\nno passes"
        row[-1].text(0.03, 0.04, note, transform=row[-1].transAxes, color=MUTED, fontsize=9)


def _draw(axes: Axes, curve: TrainingCurve, costs: NDArray[np.float64], colour: str, order: int) -> None:
    shown = np.ones(len(costs), dtype=bool) if axes.get_xscale() == "linear" else costs > 0
    costs = costs[shown]
    accuracy, deviation = 100 * np.array(curve.accuracy)[shown], 100 * np.array(curve.deviation)[shown]
    axes.plot(costs, accuracy, color=colour, zorder=3 + order, **_line_style(curve.start))
    if curve.num_seeds > 1:
        axes.fill_between(costs, accuracy - deviation, accuracy + deviation, color=colour, alpha=0.18, linewidth=0)
    if curve.start not in _MADE and curve.rounds[0] == 0 and shown[0]:
        axes.plot(costs[:1], accuracy[:1], **_star(colour), zorder=20 + order)


def _line_style(start: str) -> dict[str, Any]:
    return {"linewidth": 1.7, "linestyle": _DASHES.get(start, "-"), "solid_capstyle": "round"}


def _star(colour: str) -> dict[str, Any]:
    return {
        "marker": "*",
        "markersize": 13.0,
        "color": colour,
        "markeredgecolor": "white",
        "markeredgewidth": 0.9,
        "linestyle": "none",
        "clip_on": False,
    }


def _accuracy_limits(curves: Sequence[TrainingCurve]) -> tuple[float, float]:
    """Show all of the curves from solved heads, and of the others what lies near them and their ends."""
    solved = [curve for curve in curves if curve.start not in _MADE] or curves
    shown = [score for curve in solved for score in curve.accuracy] + [max(curve.accuracy) for curve in curves]
    low, high = 100 * min(shown), 100 * max(shown)
    margin = max(high - low, 2.0)
    below = 0.35 if solved is not curves else 0.06
    return max(low - below * margin, -1.0), min(high + 0.08 * margin, 101.0)


def _limit_log_axis(axes: Axes, costs: Sequence[float]) -> None:
    """Leave room around the costs, at least a decade where they are all the same."""
    low, high = (min(costs), max(costs)) if costs else (1.0, 1.0)
    room = max(np.log10(high / low), 1.0)
    low, high = low * 10 ** (-0.07 * room), high * 10 ** (0.07 * room)
    if high / low < 10:
        middle = np.sqrt(low * high)
        low, high = middle / 10**0.5, middle * 10**0.5
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(_few(log_ticks(low, high))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: _number(value))


def _few(ticks: list[float]) -> list[float]:
    """Thin ticks out to what a third of the figure's width has room for."""
    return ticks[:: -(-len(ticks) // 6)]


def _number(value: float) -> str:
    """Give a tick's text: 0.05, 20, 5k, 2M, 3G."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _add_legend(figure: Figure, curves: Sequence[TrainingCurve], colours: dict[str, str]) -> None:
    handles: list[Line2D] = []
    starts = {_label(curve): curve.start for curve in curves}
    for label, start in starts.items():
        handles.append(Line2D([], [], color=colours[label], **_line_style(start)))
    notes = []
    if any(start not in _MADE for start in starts.values()):
        notes.append("star: the head as solved, before any training")
    seeds = max(curve.num_seeds for curve in curves)
    if seeds > 1:
        notes.append(f"mean of {seeds} seeds, band: one standard deviation")
    legend = figure.legend(
        handles,
        list(starts),
        loc="outside lower center",
        ncols=min(len(starts), 6),
        frameon=False,
        fontsize=9,
        handlelength=2.2,
        title="; ".join(notes) or None,
        title_fontsize=9,
    )
    legend.get_title().set_color(MUTED)
