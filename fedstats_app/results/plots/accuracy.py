"""Accuracy of each method against the megabytes that it makes the clients send."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox

from fedstats_app.results.plots.style import (
    FAINT,
    METHOD_COLOURS,
    MUTED,
    new_figure,
    plot_style,
    save_png,
    set_title,
)

_MARKER = 9.0  # points
_SUBTITLE = "dashed: the best accuracy for the bytes"


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


def plot_accuracy_vs_megabytes(points: Sequence[CostPoint], path: Path, title: str = "Accuracy against bytes") -> None:
    """Draw accuracy (%) over megabytes up (log), one labelled point per method, and the Pareto front.

    Parameters
    ----------
    points : sequence of CostPoint
        At least one.
    path : Path
        PNG file to write.
    title : str
        Such as dataset, backbone and number of clients.

    Raises
    ------
    ValueError
        If there is no point.
    """
    with plot_style():
        save_png(accuracy_figure(points, title), path)


def accuracy_figure(points: Sequence[CostPoint], title: str) -> Figure:
    """Build the figure; call it within `plot_style`."""
    if not points:
        raise ValueError("accuracy against megabytes: there must be at least one method with an accuracy, got none")
    figure = new_figure(7.5, 5.0)
    axes = figure.add_subplot()
    _set_up_axes(axes, points)
    set_title(axes, title, _SUBTITLE)
    _draw_front(axes, points)
    for index, point in enumerate(points):
        coincident = sum(_same_place(point, other) for other in points[:index])
        axes.plot(
            point.megabytes,
            100 * point.accuracy,
            "o",
            # Concentric where methods coincide, the first outermost.
            markersize=max(_MARKER - 3.0 * coincident, 2.0) + 3.0 * (_same_place_later(points, index) > 0),
            color=_colour(index),
            markeredgecolor="white",
            markeredgewidth=1.0,
            zorder=3 + coincident,
        )
    _place_labels(figure, axes, points)
    return figure


def pareto_front(points: Sequence[CostPoint]) -> list[CostPoint]:
    """Points that no other beats in accuracy for the same or fewer bytes, by growing bytes."""
    front: list[CostPoint] = []
    for point in sorted(points, key=lambda point: (point.megabytes, -point.accuracy)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return front


def _same_place(one: CostPoint, other: CostPoint) -> bool:
    return abs(one.accuracy - other.accuracy) < 2e-3 and abs(np.log(one.megabytes / other.megabytes)) < 0.02


def _same_place_later(points: Sequence[CostPoint], index: int) -> int:
    return sum(_same_place(points[index], other) for other in points[index + 1 :])


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
    spread = max(np.ptp(accuracies), 4.0)
    axes.set_ylim(max(accuracies.min() - 0.25 * spread, -2.0), min(accuracies.max() + 0.25 * spread, 102.0))
    axes.xaxis.set_major_locator(FixedLocator(_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_xlabel("sent by all clients together (MB, log scale)")
    axes.set_ylabel("test accuracy")
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_axisbelow(True)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between the limits: whole decades if there are enough of them, else 1-2-5 steps."""
    decades = np.log10(high / low)
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1,) if decades > 5 else (1, 3) if decades > 3 else (1, 2, 5)
    return [step * 10.0**power for power in exponents for step in steps if low <= step * 10.0**power <= high]


def _draw_front(axes: Axes, points: Sequence[CostPoint]) -> None:
    front = pareto_front(points)
    megabytes = [point.megabytes for point in front] + [axes.get_xlim()[1]]
    accuracies = [100 * point.accuracy for point in front]
    axes.step(megabytes, [*accuracies, accuracies[-1]], where="post", color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))


def _place_labels(figure: Figure, axes: Axes, points: Sequence[CostPoint]) -> None:
    """Write each label where it covers no other label and no point, as near to its own point as possible."""
    canvas = figure.canvas
    assert_agg = canvas if isinstance(canvas, FigureCanvasAgg) else FigureCanvasAgg(figure)
    assert_agg.draw()  # lays the axes out, so that places in pixels are final
    renderer = assert_agg.get_renderer()
    pixels = figure.dpi / 72
    centres = axes.transData.transform([(point.megabytes, 100 * point.accuracy) for point in points])
    half = (_MARKER / 2 + 2) * pixels
    taken = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in centres]
    inside = axes.get_window_extent(renderer)
    for index, point in enumerate(points):
        label = _label(axes, point, _colour(index))
        _move_to_free_place(label, taken, inside, renderer, far_from=taken[index])
        taken.append(label.get_window_extent(renderer))
