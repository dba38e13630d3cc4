"""Accuracy of each method against the megabytes that it makes the clients send."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, NullLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from fedstats_app.report.plots.binning import log_ticks
from fedstats_app.report.plots.label_places import leader, place_labels
from fedstats_app.report.plots.style import (
    METHOD_COLOURS,
    MUTED,
    new_figure,
    per_cent,
    plot_style,
    quiet_axes,
    save_png,
    set_title,
)
from fedstats_app.report.text_columns import bytes_with_unit

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


def accuracy_figure(points: Sequence[CostPoint], title: str, curves: Sequence[Sequence[CostPoint]] = ()) -> Figure:
    """Build the figure; call it within `plot_style`."""
    if not points:
        raise ValueError("accuracy against megabytes: there must be at least one method with an accuracy, got none")
    figure = new_figure(7.5, 5.0)
    axes = figure.add_subplot()
    _set_up_axes(axes, [*points, *itertools.chain(*curves)])
    lines = ", ".join(curve[0].label for curve in curves)
    set_title(axes, title, _SUBTITLE + (f"; line: {lines} at other ranks" if lines else ""), inches=7.5)
    axes.plot(*zip(*_front_line(axes, points), strict=True), color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    for curve in curves:
        _draw_curve(axes, curve, [point.label for point in points])
    for index, point in enumerate(points):
        # Where points coincide, the first is the largest and lies lowest, so that a ring of it can be seen.
        above = sum(_coincide(point, other) for other in points[index + 1 :])
        axes.plot(
            point.megabytes,
            100 * point.accuracy,
            "o",
            markersize=_MARKER + 4.0 * above,
            color=_colour(index),
            markeredgecolor="white",
            markeredgewidth=1.0,
            zorder=3 + index,
        )
    _label_points(figure, axes, points, curves)
    return figure


def _draw_curve(axes: Axes, curve: Sequence[CostPoint], labels: Sequence[str]) -> None:
    for point in curve:
        if point.label not in labels:
            raise ValueError(f"a curve must be of a method among the points, {', '.join(labels)}, got {point.label}")
    axes.plot(
        *zip(*_corners(curve), strict=True),
        "o-",
        color=_colour(labels.index(curve[0].label)),
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
    figure: Figure, axes: Axes, points: Sequence[CostPoint], curves: Sequence[Sequence[CostPoint]]
) -> None:
    """Write each point's name and numbers beside it, with a thin line to it where there is no room next to it."""
    figure.draw_without_rendering()  # lays the axes out, so that places in pixels are final
    pixels = figure.dpi / 72  # per typographic point
    centres = axes.transData.transform([(point.megabytes, 100 * point.accuracy) for point in points])
    markers = [_box_around(centre, centre, (_MARKER / 2 + 3) * pixels) for centre in centres]
    corners = axes.transData.transform(_front_line(axes, points))
    front = [_box_around(start, end, 2 * pixels) for start, end in itertools.pairwise(corners)]
    lines = [box for curve in curves for box in _along(axes.transData.transform(_corners(curve)), 4 * pixels)]
    labels = [_label(axes, point, index) for index, point in enumerate(points)]
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


def _label(axes: Axes, point: CostPoint, index: int) -> Annotation:
    return axes.annotate(
        f"{point.label}\n{100 * point.accuracy:.1f} %, {bytes_with_unit(1e6 * point.megabytes)}",
        (point.megabytes, 100 * point.accuracy),
        xytext=(0, 0),
        textcoords="offset points",
        ha="center",
        va="center",
        multialignment="left",
        color=_colour(index),
        fontsize=9.5,
        linespacing=1.25,
        arrowprops={"arrowstyle": "-", "color": _colour(index), "linewidth": 0.7, "shrinkA": 0, "shrinkB": _MARKER / 2},
        path_effects=[withStroke(linewidth=3, foreground="white")],
        zorder=10,
    )
