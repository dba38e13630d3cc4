"""Pictures of a table: cells on a line each, ours beside published; a sweep over one key as curves; costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

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
from research.reproduce.preset import Row
from research.reproduce.published import Published, Range

_WIDTH, _LINE, _AROUND = 7.5, 0.22, 1.6  # inches
_OURS, _PUBLISHED = METHOD_COLOURS[0], METHOD_COLOURS[1]
# Of the largest number over the smallest, from which on an axis is logarithmic.
_WIDE = 30.0
_PANEL_WIDTH, _PANEL_HEIGHT = 6.0, 3.6  # inches, of a sweep
_MIN_POINTS = 2

Panels = dict[str, list[tuple[Row, list[Comparison]]]]


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


def panels_of(rows: Sequence[Row], comparisons: Sequence[Comparison]) -> Panels:
    """Return the points of each row of the file, in their order, with what came out there.

    Parameters
    ----------
    rows : sequence of Row
        Of a preset. Those that no sweep or one over several keys has made are left out.
    comparisons : sequence of Comparison
        Of one measure.

    Returns
    -------
    dict
        From the row's name to its points; rows of which fewer than two points were run are left out.
    """
    of_row: dict[str, list[Comparison]] = {}
    for one in comparisons:
        of_row.setdefault(one.row, []).append(one)
    panels: Panels = {}
    for row in rows:
        if len(row.point) == 1 and any(one.values for one in of_row.get(row.name, [])):
            panels.setdefault(f"{row.title}, {next(iter(row.point))}", []).append((row, of_row[row.name]))
    return {name: points for name, points in panels.items() if len(points) >= _MIN_POINTS}


def draw_curves(panels: Panels, path: Path, title: str) -> None:
    """Draw one measure against the values swept over, equally far apart whatever they are.

    Parameters
    ----------
    panels : dict
        At least one, as :func:`panels_of` gives.
    path : Path
        PNG file to write.
    title : str
        Of the picture.
    """
    with plot_style():
        figure = new_figure(_PANEL_WIDTH, _PANEL_HEIGHT * len(panels))
        for axes, (name, points) in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True):
            _draw_panel(axes, points)
            set_title(axes, name, title, inches=_PANEL_WIDTH)
        save_png(figure, path)


def _draw_panel(axes: Axes, points: Sequence[tuple[Row, Sequence[Comparison]]]) -> None:
    columns = list(dict.fromkeys(one.column for _, found in points for one in found if one.values))
    measure = MEASURES[points[0][1][0].measure]
    for index, column in enumerate(columns):
        colour = METHOD_COLOURS[index % len(METHOD_COLOURS)]
        cells = [next((one for one in found if one.column == column), None) for _, found in points]
        ours = [(place, one.ours) for place, one in enumerate(cells) if one is not None and one.ours is not None]
        axes.errorbar(
            [place for place, _ in ours],
            [mean for _, (mean, _) in ours],
            yerr=[spread for _, (_, spread) in ours],
            fmt="o-",
            color=colour,
            capsize=2,
            label=column,
        )
        published = [(place, one.published) for place, one in enumerate(cells) if one and type(one.published) is float]
        if published:
            places, numbers = zip(*published, strict=True)
            axes.plot(places, numbers, "D--", color=colour, mfc="white", label=f"{column}, published")
    axes.set_xticks(range(len(points)), [_tick(value) for row, _ in points for value in row.point.values()])
    axes.set_ylabel(measure.heading)
    quiet_axes(axes, "y")
    axes.legend(frameon=False, fontsize=8)


def _tick(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
