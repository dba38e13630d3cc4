"""Accuracy of each method against the megabytes that it makes the clients send."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import hypot
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, NullLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from fedstats_app.report.plots.style import (
    METHOD_COLOURS,
    MUTED,
    log_ticks,
    new_figure,
    per_cent,
    plot_style,
    quiet_axes,
    save_png,
    set_title,
)
from fedstats_app.report.text_columns import bytes_with_unit

_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_DISTANCES = (0.0, 0.7, 1.4, 2.2, 3.0, 4.0, 5.0, 7.0, 10.0)  # in heights of the label
_ATTEMPTS = 4
_FREE = 1e-3  # square pixels that are as good as none


def place_labels(
    points: Sequence[Bbox], sizes: Sequence[tuple[float, float]], obstacles: Sequence[Bbox], area: Bbox
) -> list[Bbox]:
    """Find a place for each label, as near to its point as there is room.

    One label after another takes the nearest free place; those that find none go first in another attempt.

    Parameters
    ----------
    points : sequence of Bbox
        What each point covers; labels keep clear of all of them.
    sizes : sequence of (float, float)
        Width and height of each label.
    obstacles : sequence of Bbox
        What else labels keep clear of.
    area : Bbox
        Labels stay inside it.

    Returns
    -------
    list of Bbox
        One place per label. Where no attempt has a free one for each, those that cover least.
    """
    order, best, least = list(range(len(points))), list(points), float("inf")
    for _ in range(_ATTEMPTS):
        places, covered = _attempt(order, points, sizes, obstacles, area)
        if sum(covered) < least:
            best, least = places, sum(covered)
        if least < _FREE:
            break
        order.sort(key=covered.__getitem__, reverse=True)
    return best


def _attempt(
    order: Sequence[int],
    points: Sequence[Bbox],
    sizes: Sequence[tuple[float, float]],
    obstacles: Sequence[Bbox],
    area: Bbox,
) -> tuple[list[Bbox], list[float]]:
    """Give each label in this order its best place; return places and what each covers, in the order of the points."""
    taken, places, covered = [*points, *obstacles], list(points), [0.0] * len(points)
    placed: list[Bbox] = []
    for index in order:
        places[index], covered[index] = _best_place(points[index], sizes[index], taken, placed, area)
        # A later label must not lie on this one, nor on the line that leads to it.
        taken.extend([places[index], *leader(points[index], places[index])])
        placed.append(places[index])
    return places, covered


def _best_place(
    point: Bbox, size: tuple[float, float], taken: Sequence[Bbox], labels: Sequence[Bbox], area: Bbox
) -> tuple[Bbox, float]:
    """Give the nearest free place, else the one that covers least, and what it covers."""
    best, least = point, float("inf")
    for place in _candidates(point, size):
        outside = place.width * place.height - _covered([place], [area])
        covered = outside + _covered([place], taken) + _covered(leader(point, place), labels)
        if covered < least - _FREE:
            best, least = place, covered
        if least < _FREE:
            break
    return best, least


def leader(point: Bbox, place: Bbox) -> list[Bbox]:
    """Give the line from a label's edge to its point as a row of small boxes; none if the label touches the point."""
    gap_x = max(place.x0 - point.x1, point.x0 - place.x1, 0.0)
    gap_y = max(place.y0 - point.y1, point.y0 - place.y1, 0.0)
    if hypot(gap_x, gap_y) < 1.0:
        return []
    start, end = (np.array([box.x0 + box.x1, box.y0 + box.y1]) / 2 for box in (point, place))
    steps = np.linspace(start, end, 2 + int(hypot(*(end - start)) / 4))
    return [Bbox.from_extents(x - 2, y - 2, x + 2, y + 2) for x, y in steps if not place.contains(x, y)]


def _candidates(point: Bbox, size: tuple[float, float]) -> Iterator[Bbox]:
    width, height = size
    centre_x, centre_y = (point.x0 + point.x1) / 2, (point.y0 + point.y1) / 2
    for distance, (right, up) in product(_DISTANCES, _DIRECTIONS):
        reach = distance * height / hypot(right, up)
        x = centre_x + right * (point.width / 2 + width / 2 + reach)
        y = centre_y + up * (point.height / 2 + height / 2 + reach)
        yield Bbox.from_extents(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _covered(boxes: Sequence[Bbox], others: Sequence[Bbox]) -> float:
    """Add up the areas that boxes share with others."""
    if not boxes or not others:
        return 0.0
    one = np.array([box.extents for box in boxes])[:, None]  # (boxes, 1, 4): x0, y0, x1, y1
    other = np.array([box.extents for box in others])[None]  # (1, others, 4)
    sides = np.minimum(one[..., 2:], other[..., 2:]) - np.maximum(one[..., :2], other[..., :2])
    return float(np.clip(sides, 0.0, None).prod(axis=-1).sum())


_MARKER = 9.0  # points
_CURVE_MARKER = 4.5
_SUBTITLE = "dashed: the most accurate method for the bytes"


@dataclass(frozen=True)
class CostPoint:
    """One method's place in the plot.

    Attributes
    ----------
    label : str
        As shown.
    megabytes : float
        Sent by all clients together, in 10^6 bytes; more than 0.
    accuracy : float
        0 to 1.
    """

    label: str
    megabytes: float
    accuracy: float

    def __post_init__(self) -> None:
        """Refuse what a logarithmic axis cannot show."""
        if not 0 < self.megabytes < float("inf"):
            raise ValueError(f"{self.label}: megabytes must be positive and finite, got {self.megabytes}")
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"{self.label}: accuracy must be between 0 and 1, got {self.accuracy}")


def plot_accuracy_vs_megabytes(
    points: Sequence[CostPoint],
    path: Path,
    title: str = "Accuracy against bytes",
    curves: Sequence[Sequence[CostPoint]] = (),
) -> None:
    """Draw accuracy (%) over megabytes up (log), one labelled point per method, their Pareto front, and curves.

    Parameters
    ----------
    points : sequence of CostPoint
        At least one.
    path : Path
        PNG file to write.
    title : str
        Such as dataset, backbone and number of clients.
    curves : sequence of sequence of CostPoint
        Each of one method, which is among the points, at other ranks: joined by a line in the order of megabytes.

    Raises
    ------
    ValueError
        If there is no point, or a curve is of no method among the points.
    """
    with plot_style():
        save_png(accuracy_figure(points, title, curves), path)


def accuracy_figure(
    points: Sequence[CostPoint],
    title: str,
    curves: Sequence[Sequence[CostPoint]] = (),
    colours: Sequence[int] | None = None,
) -> Figure:
    """Build the figure; call it within `plot_style`. Points have colours by these numbers, else each its own."""
    colours = range(len(points)) if colours is None else colours
    if not points:
        raise ValueError("accuracy against megabytes: there must be at least one method with an accuracy, got none")
    figure = new_figure(7.5, 5.0)
    axes = figure.add_subplot()
    _set_up_axes(axes, [*points, *itertools.chain(*curves)])
    lines = ", ".join(curve[0].label for curve in curves)
    set_title(axes, title, _SUBTITLE + (f"; line: {lines} at other ranks" if lines else ""), inches=7.5)
    axes.plot(*zip(*_front_line(axes, points), strict=True), color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    for curve in curves:
        _draw_curve(axes, curve, [point.label for point in points], colours)
    for index, point in enumerate(points):
        # Where points coincide, the first is the largest and lies lowest, so that a ring of it can be seen.
        above = sum(_coincide(point, other) for other in points[index + 1 :])
        axes.plot(
            point.megabytes,
            100 * point.accuracy,
            "o",
            markersize=_MARKER + 4.0 * above,
            color=_colour(colours[index]),
            markeredgecolor="white",
            markeredgewidth=1.0,
            zorder=3 + index,
        )
    _label_points(figure, axes, points, curves, colours)
    return figure


def _draw_curve(axes: Axes, curve: Sequence[CostPoint], labels: Sequence[str], colours: Sequence[int]) -> None:
    for point in curve:
        if point.label not in labels:
            raise ValueError(f"a curve must be of a method among the points, {', '.join(labels)}, got {point.label}")
    axes.plot(
        *zip(*_corners(curve), strict=True),
        "o-",
        color=_colour(colours[labels.index(curve[0].label)]),
        linewidth=1.4,
        markersize=_CURVE_MARKER,
        markeredgecolor="white",
        markeredgewidth=0.6,
        zorder=2.5,
    )


def _corners(curve: Sequence[CostPoint]) -> list[tuple[float, float]]:
    return sorted((point.megabytes, 100 * point.accuracy) for point in curve)


def pareto_front(points: Sequence[CostPoint]) -> list[CostPoint]:
    """Points that no other beats in accuracy for the same or fewer bytes, by growing bytes."""
    front: list[CostPoint] = []
    for point in sorted(points, key=lambda point: (point.megabytes, -point.accuracy)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return front


def _coincide(one: CostPoint, other: CostPoint) -> bool:
    return abs(one.accuracy - other.accuracy) < 2e-3 and abs(np.log(one.megabytes / other.megabytes)) < 0.02


def _colour(index: int) -> str:
    return METHOD_COLOURS[index % len(METHOD_COLOURS)]


def _set_up_axes(axes: Axes, points: Sequence[CostPoint]) -> None:
    megabytes = np.array([point.megabytes for point in points])
    accuracies = np.array([100 * point.accuracy for point in points])
    decades = max(np.log10(megabytes.max() / megabytes.min()), 0.8)
    low = megabytes.min() * 10 ** (-0.18 * decades)
    high = megabytes.max() * 10 ** (0.30 * decades)  # room for labels right of the last point
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    margin = max(0.25 * np.ptp(accuracies), 2.5)
    axes.set_ylim(max(accuracies.min() - margin, -2.0), min(accuracies.max() + margin, 102.0))
    axes.xaxis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    # The limits leave room for labels beyond what an accuracy can be, where there is nothing to read off.
    axes.set_yticks([tick for tick in axes.get_yticks() if max(axes.get_ylim()[0], 0) <= tick <= 100])
    axes.yaxis.set_major_formatter(per_cent)
    axes.set_xlabel("sent by all clients together (MB, log scale)")
    axes.set_ylabel("test accuracy")
    quiet_axes(axes, "y")


def _front_line(axes: Axes, points: Sequence[CostPoint]) -> list[tuple[float, float]]:
    """Give the corners of the front, a staircase that goes on to the right edge."""
    front = pareto_front(points)
    ends = [*(point.megabytes for point in front[1:]), axes.get_xlim()[1]]
    return [
        corner
        for point, end in zip(front, ends, strict=True)
        for corner in ((point.megabytes, 100 * point.accuracy), (end, 100 * point.accuracy))
    ]


def _label_points(
    figure: Figure,
    axes: Axes,
    points: Sequence[CostPoint],
    curves: Sequence[Sequence[CostPoint]],
    colours: Sequence[int],
) -> None:
    """Write each point's name and numbers beside it, with a thin line to it where there is no room next to it."""
    figure.draw_without_rendering()  # lays the axes out, so that places in pixels are final
    pixels = figure.dpi / 72  # per typographic point
    centres = axes.transData.transform([(point.megabytes, 100 * point.accuracy) for point in points])
    markers = [_box_around(centre, centre, (_MARKER / 2 + 3) * pixels) for centre in centres]
    corners = axes.transData.transform(_front_line(axes, points))
    front = [_box_around(start, end, 2 * pixels) for start, end in itertools.pairwise(corners)]
    lines = [box for curve in curves for box in _along(axes.transData.transform(_corners(curve)), 4 * pixels)]
    labels = [_label(axes, point, _colour(colour)) for point, colour in zip(points, colours, strict=True)]
    sizes = [(box.width, box.height) for box in (label.get_window_extent() for label in labels)]
    places = place_labels(markers, sizes, [*front, *lines], axes.get_window_extent())
    for label, centre, marker, place in zip(labels, centres, markers, places, strict=True):
        middle = np.array([place.x0 + place.x1, place.y0 + place.y1]) / 2
        label.xyann = tuple((middle - centre) / pixels)
        if label.arrow_patch is not None:
            label.arrow_patch.set_visible(bool(leader(marker, place)))


def _along(corners: NDArray[np.float64], margin: float) -> list[Bbox]:
    """Return small boxes that cover a line through these pixels."""
    boxes = [_box_around(corner, corner, margin) for corner in corners]
    for start, end in itertools.pairwise(corners):
        places = np.linspace(start, end, 2 + int(np.abs(end - start).max() / margin))
        boxes += [_box_around(*pair, margin / 2) for pair in itertools.pairwise(places)]
    return boxes


def _box_around(start: NDArray[np.float64], end: NDArray[np.float64], margin: float) -> Bbox:
    low, high = np.minimum(start, end) - margin, np.maximum(start, end) + margin
    return Bbox.from_extents(low[0], low[1], high[0], high[1])


def _label(axes: Axes, point: CostPoint, colour: str) -> Annotation:
    return axes.annotate(
        f"{point.label}\n{100 * point.accuracy:.1f} %, {bytes_with_unit(1e6 * point.megabytes)}",
        (point.megabytes, 100 * point.accuracy),
        xytext=(0, 0),
        textcoords="offset points",
        ha="center",
        va="center",
        multialignment="left",
        color=colour,
        fontsize=9.5,
        linespacing=1.25,
        arrowprops={
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.7,
            "shrinkA": 0,
            "shrinkB": _MARKER / 2,
        },
        path_effects=[withStroke(linewidth=3, foreground="white")],
        zorder=10,
    )
