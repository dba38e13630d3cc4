"""What the plots have in common: look, colours, text, writing the file."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedstats_app.storage.files import write_atomically

_MOST_DECADES = 8


def group_size(number: int, most: int) -> int:
    """How many neighbours share a cell so that `number` of them need at most `most` cells."""
    return -(-number // most)


def sum_groups(table: NDArray[np.int64], size: int, axis: int) -> NDArray[np.int64]:
    """Add up every `size` neighbours along an axis; the last group may be smaller."""
    summed: NDArray[np.int64] = np.add.reduceat(table, np.arange(0, table.shape[axis], size), axis=axis)
    return summed


def log_ticks(low: float, high: float) -> list[float]:
    """Give round numbers from low to high: decades, fewer where they are many, steps between where they are few."""
    decades = np.log10(high / low)
    steps = (1,) if decades > 5 else (1, 3) if decades > 3 else (1, 2, 5) if decades > 1.2 else (1, 2, 3, 5, 7)
    every = group_size(int(decades) + 1, _MOST_DECADES)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1, every)
    return [tick for power in powers for step in steps if low <= (tick := step * 10.0**power) <= high]


INK = "#222222"
MUTED = "#6b6b6b"
FAINT = "#d9d9d9"

# Two qualitative schemes that colour-blind readers can tell apart: Okabe & Ito 2008, darkened so that text in them can
# be read, and Tol's "muted" (technical note SRON/EPS/TN/09-002).
METHOD_COLOURS = ("#0065A0", "#BF4F00", "#007A5A", "#A8407C", "#222222", "#8F6500", "#2C83B4")
CLASS_COLOURS = (
    "#332288",
    "#88CCEE",
    "#117733",
    "#DDCC77",
    "#CC6677",
    "#44AA99",
    "#882255",
    "#999933",
    "#AA4499",
    "#BBBBBB",
)

_STYLE: dict[Any, Any] = {  # Any, because the stubs of some versions of matplotlib spell out every key
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10.0,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$5"
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.dpi": 150.0,
    "savefig.dpi": "figure",
}


@contextmanager
def plot_style() -> Iterator[None]:
    """Draw in our style, whatever the user's matplotlibrc says, and put back what was set before."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of a size in inches. Not by pyplot, which keeps figures alive and wants the main thread."""
    # "compressed" is "constrained" that also works with square cells.
    return Figure(figsize=(width, height), layout="compressed")


def save_png(figure: Figure, path: Path) -> None:
    """Write the figure as PNG, the same bytes for the same figure and version of matplotlib."""
    write_atomically(path, png_bytes(figure))


def png_bytes(figure: Figure) -> bytes:
    """Return the figure as a PNG file; what it was laid out for is used up."""
    # Laid out and drawn once: savefig draws a figure twice or three times, to the same pixels.
    if (engine := figure.get_layout_engine()) is not None:
        # A figure of subfigures it cannot lay out, and savefig would pass over that too.
        with suppress(ValueError):
            engine.execute(figure)
        figure.set_layout_engine("none")
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def set_title(axes: Axes, title: str, subtitle: str, *, inches: float) -> None:
    """Put a bold title and grey lines below it at the top left of the axes, broken to fit a figure of that width."""
    room = inches - 1.5  # the axes begin about there
    small = textwrap.wrap(subtitle, int(13.5 * room))
    large = textwrap.wrap(title, int(9.5 * room)) or [""]
    axes.set_title("\n".join([*large, *[""] * len(small)]), loc="left", fontsize=12, fontweight="bold")
    axes.annotate(
        "\n".join(small),
        (0, 1),
        xytext=(0, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        color=MUTED,
        fontsize=9,
    )


def per_cent(value: float, _: float | None) -> str:
    """Return a tick's text."""
    return f"{value:g} %"


def whole(value: float, _: float | None) -> str:
    """Return a tick's text."""
    return f"{value:,.0f}"


def quiet_axes(axes: Axes, along: Literal["x", "y"]) -> None:
    """Draw faint lines below the data at the ticks of one axis, and no ticks and no line at the left."""
    axes.grid(axis=along, color=FAINT, linewidth=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_axisbelow(True)


def shortened(names: Sequence[str], length: int = 18) -> list[str]:
    """Cut long names in the middle, so that they leave room for the data; their ends often tell them apart.

    Where they do not, the names that would look alike are cut around the place where they begin to differ, and where
    that is not enough, numbered. Different names stay different, at most `length` characters long.
    """
    tail = length // 2 - 1
    head = length - 1 - tail
    short = [name if len(name) <= length else f"{name[:head].rstrip()}…{name[-tail:].lstrip()}" for name in names]
    for alike in _alike(short, names):
        begin = max(_first_difference([names[place] for place in alike]) - 2, 0)
        for place in alike:
            part = names[place][begin : begin + length - 2]
            short[place] = f"{'…' if begin else ''}{part}{'…' if begin + len(part) < len(names[place]) else ''}"
    while alike_still := _alike(short, names):  # again, should a name look like a numbered one
        for place in (place for alike in alike_still for place in alike):
            number = f" #{place}"
            short[place] = short[place][: length - len(number)] + number
    return short


def _first_difference(names: Sequence[str]) -> int:
    """Return how many letters all names begin with."""
    columns = enumerate(zip(*names, strict=False))
    return next((place for place, letters in columns if len(set(letters)) > 1), min(map(len, names)))


def _alike(short: Sequence[str], names: Sequence[str]) -> list[list[int]]:
    """Return the places of different names that have become the same, together."""
    places: dict[str, list[int]] = {}
    for place, text in enumerate(short):
        places.setdefault(text, []).append(place)
    return [alike for alike in places.values() if len({names[place] for place in alike}) > 1]
