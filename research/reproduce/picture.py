"""Curves of a table that sweeps over one key, ours beside published."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from fedstats_app.report.plots.style import METHOD_COLOURS, new_figure, plot_style, quiet_axes, save_png, set_title
from research.reproduce.catalogue import MEASURES
from research.reproduce.outcome import Comparison
from research.reproduce.preset import Row

_PANEL_WIDTH, _PANEL_HEIGHT = 6.0, 3.6  # inches, of a sweep
_MIN_POINTS = 2

Panels = dict[str, list[tuple[Row, list[Comparison]]]]


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
    for comparison in comparisons:
        of_row.setdefault(comparison.row, []).append(comparison)
    panels: Panels = {}
    for row in rows:
        if len(row.point) == 1 and any(comparison.values for comparison in of_row.get(row.name, [])):
            panels.setdefault(f"{row.title}, {next(iter(row.point))}", []).append((row, of_row[row.name]))
    return {name: points for name, points in panels.items() if len(points) >= _MIN_POINTS}


def draw_curves(panels: Panels, path: Path, title: str) -> None:
    """Draw one measure against the swept values, at equal distances.

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
    columns = list(dict.fromkeys(comparison.column for _, found in points for comparison in found if comparison.values))
    measure = MEASURES[points[0][1][0].measure]
    for index, column in enumerate(columns):
        colour = METHOD_COLOURS[index % len(METHOD_COLOURS)]
        cells = [next((comparison for comparison in found if comparison.column == column), None) for _, found in points]
        ours = [
            (place, comparison.ours)
            for place, comparison in enumerate(cells)
            if comparison is not None and comparison.ours is not None
        ]
        axes.errorbar(
            [place for place, _ in ours],
            [mean for _, (mean, _) in ours],
            yerr=[spread for _, (_, spread) in ours],
            fmt="o-",
            color=colour,
            capsize=2,
            label=column,
        )
        published = [
            (place, comparison.published.value)
            for place, comparison in enumerate(cells)
            if comparison and comparison.published
        ]
        if published:
            places, numbers = zip(*published, strict=True)
            axes.plot(places, numbers, "D--", color=colour, mfc="white", label=f"{column}, published")
    axes.set_xticks(range(len(points)), [_tick(value) for row, _ in points for value in row.point.values()])
    axes.set_ylabel(measure.heading)
    quiet_axes(axes, "y")
    axes.legend(frameon=False, fontsize=8)


def _tick(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
