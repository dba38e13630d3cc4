"""The picture: in each row of it a cell of the table, ours with its spread and the published number on one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedstats_app.report.plots.accuracy import CostPoint
from fedstats_app.report.plots.style import (
    METHOD_COLOURS,
    MUTED,
    new_figure,
    plot_style,
    quiet_axes,
    save_png,
    set_title,
    shortened,
    whole,
)
from research.reproduce.catalogue import MEASURES
from research.reproduce.outcome import Comparison
from research.reproduce.published import Published, Range

_WIDTH, _LINE, _AROUND = 7.5, 0.22, 1.6  # inches
_OURS, _PUBLISHED = METHOD_COLOURS[0], METHOD_COLOURS[1]
# Of the largest number over the smallest, from which on an axis is logarithmic.
_WIDE = 30.0


def draw(comparisons: Sequence[Comparison], path: Path, title: str) -> None:
    """Draw one measure.

    Parameters
    ----------
    comparisons : sequence of Comparison
        At least one with a number, all of one measure; those without any are left out.
    path : Path
        PNG file to write.
    title : str
        Of the picture.
    """
    shown = [one for one in comparisons if one.values or one.published is not None]
    measure = MEASURES[shown[0].measure]
    height = _AROUND + _LINE * (len(shown) + len({one.row for one in shown}))
    with plot_style():
        figure = new_figure(_WIDTH, height)
        axes = figure.add_subplot()
        places, heads = _places(shown)
        for one, place in zip(shown, places, strict=True):
            if isinstance(one.published, Range):
                axes.plot(_ends(one.published), [place, place], color=_PUBLISHED, linewidth=5, alpha=0.35, zorder=1)
            elif one.published is not None:
                if one.ours is not None:
                    axes.plot([one.ours[0], one.published], [place, place], color=MUTED, linewidth=0.8, zorder=1)
                axes.plot(one.published, place, "D", markersize=5.5, mfc="white", mec=_PUBLISHED, mew=1.4, zorder=2)
            if one.ours is not None:
                mean, spread = one.ours
                axes.errorbar(mean, place, xerr=spread, fmt="o", markersize=5, color=_OURS, capsize=2, zorder=3)
        names = dict(zip(places, shortened([one.column for one in shown], 28), strict=True)) if shown else {}
        axes.set_yticks([*places], [names[place] for place in places])
        for place, row in heads:
            axes.annotate(
                row, (0, place), xycoords=("axes fraction", "data"), va="center", fontweight="bold", fontsize=9
            )
        axes.set_ylim(max(places) + 0.8, -0.8)
        numbers = [number for one in shown for number in (*one.values, *_ends(one.published))]
        if min(numbers) > 0 and max(numbers) > _WIDE * min(numbers):
            axes.set_xscale("log")
            if measure.digits >= 0:
                axes.xaxis.set_major_formatter(whole)
        axes.set_xlabel(measure.heading)
        quiet_axes(axes, "x")
        set_title(
            axes, title, "filled: ours, mean and standard deviation over seeds; open or bar: published", inches=_WIDTH
        )
        save_png(figure, path)


def _ends(published: Published | None) -> list[float]:
    if isinstance(published, Range):
        return [published.low, published.high]
    return [published] if published else []


def _places(shown: Sequence[Comparison]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the height of each cell, and of the name of each row above its cells."""
    places: list[float] = []
    heads: list[tuple[float, str]] = []
    height = 0.0
    for index, one in enumerate(shown):
        if index == 0 or one.row != shown[index - 1].row:
            heads.append((height, one.row))
            height += 1.0
        places.append(height)
        height += 1.0
    return places, heads


def cost_points(comparisons: Sequence[Comparison]) -> dict[str, list[CostPoint]]:
    """Return accuracy and megabytes up of each row's columns, ours.

    Parameters
    ----------
    comparisons : sequence of Comparison
        Of all measures.

    Returns
    -------
    dict
        From row to its points; a cell without both numbers has none.
    """
    numbers = {(one.row, one.column, one.measure): one for one in comparisons}
    points: dict[str, list[CostPoint]] = {}
    for (row, column, measure), accuracy in numbers.items():
        sent = numbers.get((row, column, "uplink_bytes"))
        if measure != "accuracy" or sent is None:
            continue
        if accuracy.ours is not None and sent.ours is not None and sent.ours[0] > 0:
            points.setdefault(row, []).append(CostPoint(column, sent.ours[0], accuracy.ours[0] / 100))
    return points
