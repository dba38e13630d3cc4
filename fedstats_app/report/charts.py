"""Where the marks of a report's charts stand: plain geometry, which a template turns into inline SVG.

Text in an SVG shrinks with it, so a page has every chart in two sizes, for a desk and for a phone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from fedstats_app.report.plots.accuracy import place_labels
from fedstats_app.report.plots.style import log_ticks

WIDE, NARROW = (680, 340), (350, 300)
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 12, 44
_LETTER, _LINE = 8.9, 17.0  # pixels of a letter's width and a line's height, at the page's size of text in charts
_DOT = 5.0


@dataclass(frozen=True)
class Mark:
    """A point of the chart.

    Attributes
    ----------
    x, y : float
        In the units of the axes; y is a share, 0 to 1.
    colour : int
        Which of the page's colours.
    label, more : str
        A name, written beside the point, and what is said when somebody points at it.
    """

    x: float
    y: float
    colour: int
    label: str = ""
    more: str = ""


@dataclass(frozen=True)
class Line:
    """Points joined in their order, without labels.

    Attributes
    ----------
    points : sequence of (float, float)
        In the units of the axes.
    colour : int
        Which of the page's colours; -1 is grey.
    dashed : bool
        Whether it is dashed.
    """

    points: Sequence[tuple[float, float]]
    colour: int = -1
    dashed: bool = False


@dataclass(frozen=True)
class Label:
    """A text at a place: its middle, in pixels."""

    x: float
    y: float
    colour: int
    text: str
    leader: str = ""  # the ends of a line to the point, "" where it stands beside it


@dataclass
class Chart:
    """One chart in one size; pixels, from the top left.

    Attributes
    ----------
    width, height : int
        Of the whole.
    left, right, top, bottom : float
        Of the area of the data.
    x_ticks, y_ticks : list of (float, str)
        Place and text.
    dots : list of (float, float, int, str)
        Place, colour and what is said of it.
    lines : list of (str, int, bool)
        The `points` of an SVG polyline, colour, and whether it is dashed.
    labels : list of Label
        Names of the points.
    x_title : str
        Below the axis.
    """

    width: int
    height: int
    x_title: str
    left: float = _LEFT
    right: float = 0.0
    top: float = _TOP
    bottom: float = 0.0
    x_ticks: list[tuple[float, str]] = field(default_factory=list)
    y_ticks: list[tuple[float, str]] = field(default_factory=list)
    dots: list[tuple[float, float, int, str]] = field(default_factory=list)
    lines: list[tuple[str, int, bool]] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)


def charts(marks: Sequence[Mark], lines: Sequence[Line], *, x_title: str, logarithmic: bool) -> dict[str, Chart]:
    """Lay out a chart of shares over some cost, in both sizes.

    Parameters
    ----------
    marks : sequence of Mark
        Points with labels; x above 0 where the axis is logarithmic.
    lines : sequence of Line
        Drawn below them.
    x_title : str
        What x is.
    logarithmic : bool
        Whether equal ratios of x are equally far apart.

    Returns
    -------
    dict
        "wide" and "narrow".
    """
    return {
        name: _chart(size, marks, lines, x_title, logarithmic) for name, size in (("wide", WIDE), ("narrow", NARROW))
    }


def _chart(
    size: tuple[int, int], marks: Sequence[Mark], lines: Sequence[Line], x_title: str, logarithmic: bool
) -> Chart:
    chart = Chart(*size, x_title)
    chart.right, chart.bottom = size[0] - _RIGHT, size[1] - _BOTTOM
    places = [(mark.x, mark.y) for mark in marks] + [place for line in lines for place in line.points]
    x_low, x_high = _x_limits([x for x, _ in places], logarithmic, labelled=any(mark.label for mark in marks))
    y_low, y_high = _y_limits([y for _, y in places])

    def x_pixel(x: float) -> float:
        share = math.log(x / x_low) / math.log(x_high / x_low) if logarithmic else (x - x_low) / (x_high - x_low)
        return chart.left + share * (chart.right - chart.left)

    def y_pixel(y: float) -> float:
        return chart.bottom - (y - y_low) / (y_high - y_low) * (chart.bottom - chart.top)

    ticks = log_ticks(x_low, x_high) if logarithmic else MaxNLocator(6, integer=True).tick_values(x_low, x_high)
    kept = [tick for tick in ticks if x_low <= tick <= x_high]
    most = 9 if size == WIDE else 5
    chart.x_ticks = [(x_pixel(tick), f"{tick:,.10g}") for tick in kept[:: max(1, -(-len(kept) // most))]]
    ticks = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]).tick_values(100 * y_low, 100 * y_high)
    steps = [round(float(tick), 9) + 0.0 for tick in ticks]  # no 100.00000000000001 and no -0
    shown = [step for step in steps if max(100 * y_low, 0) <= step <= min(100 * y_high, 100)]
    chart.y_ticks = [(y_pixel(step / 100), f"{step:g} %") for step in shown]
    for line in lines:
        corners = " ".join(f"{x_pixel(x):.1f},{y_pixel(y):.1f}" for x, y in line.points)
        chart.lines.append((corners, line.colour, line.dashed))
    for mark in marks:
        chart.dots.append((x_pixel(mark.x), y_pixel(mark.y), mark.colour, mark.more or mark.label))
    chart.labels = _labels(chart, marks)
    return chart


def _x_limits(values: Sequence[float], logarithmic: bool, *, labelled: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if not logarithmic:
        return low, high if high > low else low + 1.0
    decades = max(math.log10(high / low), 0.8)
    return low * 10 ** (-0.15 * decades), high * 10 ** ((0.28 if labelled else 0.1) * decades)


def _y_limits(values: Sequence[float]) -> tuple[float, float]:
    """Leave room around the shares, also where they are all the same."""
    low, high = min(values), max(values)
    margin = max(0.18 * (high - low), 0.02)
    return max(low - margin, -0.02), min(high + margin, 1.02)


def _labels(chart: Chart, marks: Sequence[Mark]) -> list[Label]:
    """Place the names so that they cover neither each other nor the points."""
    named = [mark for mark in marks if mark.label]
    dots = [(x, y) for (x, y, _, _), mark in zip(chart.dots, marks, strict=True) if mark.label]
    # Boxes have their origin at the bottom left.
    boxes = [_box(x, -y, _DOT + 4) for x, y in dots]
    sizes = [(_LETTER * len(mark.label), _LINE) for mark in named]
    others = [_box(x, -y, _DOT) for x, y, _, _ in chart.dots]
    corners = [np.array([corner.split(",") for corner in line.split()], dtype=float) for line, _, _ in chart.lines]
    passed = [_box(x, -y, 3) for line in corners for x, y in _along(line)]
    area = Bbox.from_extents(chart.left, -chart.bottom, chart.right, -chart.top)
    labels = []
    for mark, (x, y), place in zip(named, dots, place_labels(boxes, sizes, [*others, *passed], area), strict=True):
        middle_x, middle_y = (place.x0 + place.x1) / 2, -(place.y0 + place.y1) / 2
        far = math.hypot(max(abs(middle_x - x) - place.width / 2, 0.0), abs(middle_y - y) - _LINE / 2) > 3 * _DOT
        edge_x = min(max(x, place.x0), place.x1)
        leader = f"{x:.1f},{y:.1f} {edge_x:.1f},{middle_y + math.copysign(_LINE / 2, y - middle_y):.1f}" if far else ""
        labels.append(Label(middle_x, middle_y, mark.colour, mark.label, leader))
    return labels


def _along(corners: np.ndarray) -> list[tuple[float, float]]:
    """Return places every few pixels along a line."""
    found: list[tuple[float, float]] = []
    for start, end in itertools.pairwise(corners):
        number = 2 + int(np.abs(end - start).max() / 6)
        found += [(float(x), float(y)) for x, y in np.linspace(start, end, number)]
    return found


def _box(x: float, y: float, half: float) -> Bbox:
    return Bbox.from_extents(x - half, y - half, x + half, y + half)
