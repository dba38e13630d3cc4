"""Style and parts common to all figures, and the PNG file."""

from __future__ import annotations

import functools
import io
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, fontManager, get_font
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from fedstats_app.base.files import write_atomically

INK = "#222222"
MUTED = "#6b6b6b"
FAINT = "#d9d9d9"

# A scheme that colour-blind readers can tell apart: Okabe & Ito 2008, darkened so that text in it can be read.
METHOD_COLOURS = ("#0065A0", "#BF4F00", "#007A5A", "#A8407C", "#222222", "#8F6500", "#2C83B4")

# How matplotlib writes ticks.
PER_CENT = "{x:g} %"

_FONT = "DejaVu Sans"  # comes with matplotlib
# Fonts of systems for the scripts that it has not.
_MORE_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei"),
    *("WenQuanYi Zen Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans GB", "Hiragino Sans"),
    *("Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS", "Nirmala UI"),
)
_STYLE: dict[Any, Any] = {  # Any, because the stubs of some versions of matplotlib spell out every key
    "font.size": 10.0,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$5"
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.dpi": 150.0,
}


@contextmanager
def plot_style() -> Iterator[None]:
    """Draw in our style, whatever the user's matplotlibrc says, and restore what was set before.

    Also a decorator, for functions that build a figure.
    """
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE | {"font.family": _fonts()})
        yield


@functools.cache
def _fonts() -> list[str]:
    """List the fonts to draw with that are installed; each has characters that those before it have not."""
    installed = {font.name for font in fontManager.ttflist}
    return [_FONT, *(font for font in _MORE_FONTS if font in installed)]


@functools.cache
def _characters() -> frozenset[int]:
    return frozenset().union(*(get_font(findfont(font)).get_charmap() for font in _fonts()))


def drawable(text: str, instead: str = "") -> str:
    """Return a text if the fonts have all its characters, else another text, by default with "?" for missing ones."""
    known = [sign.isspace() or ord(sign) in _characters() for sign in text]
    if all(known):
        return text
    return instead or "".join(sign if there else "?" for sign, there in zip(text, known, strict=True))


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of a size in inches. Not by pyplot, which keeps figures alive and wants the main thread."""
    # "compressed" is "constrained" that also works with square cells.
    return Figure(figsize=(width, height), layout="compressed")


@plot_style()
def png_bytes(figure: Figure) -> bytes:
    """Draw a figure as a PNG file: the same bytes for the same figure and version of matplotlib."""
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG file."""
    write_atomically(path, png_bytes(figure))


def set_title(axes: Axes, title: str, subtitle: str, *, inches: float) -> None:
    """Put a bold title and grey lines below it at the top left of the axes, broken to fit a figure of that width."""
    room = inches - 1.5  # the axes begin about there
    small = textwrap.wrap(subtitle, int(13.5 * room))
    large = textwrap.wrap(drawable(title), int(9.5 * room)) or [""]
    axes.set_title("\n".join([*large, *[""] * len(small)]), loc="left", fontsize=12, fontweight="bold")
    place: dict[str, Any] = {"xytext": (0, 6), "xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate("\n".join(small), (0, 1), color=MUTED, fontsize=9, **place)


def quiet_axes(axes: Axes, along: Literal["x", "y"]) -> None:
    """Draw faint lines at the ticks of one axis, and neither ticks nor a line at the left."""
    axes.grid(axis=along)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def log_x(axes: Axes, values: Sequence[float], unit: str = "") -> None:
    """Make the x axis logarithmic, a decade or more around these positive values, with ticks such as 20 MB."""
    low, high = np.log10(min(values)), np.log10(max(values))
    margin = max(0.07 * (high - low), (1.0 - high + low) / 2)
    axes.set_xscale("log")
    axes.set_xlim(10 ** (low - margin), 10 ** (high + margin))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high - low < 1.5 else (1.0,), numticks=6))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(EngFormatter(unit))


def binned(table: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Add up neighbours, as many as leave at most `most` rows and columns."""
    for axis in (0, 1):
        size = -(-table.shape[axis] // most)
        table = np.add.reduceat(table, np.arange(0, table.shape[axis], size), axis=axis)
    return table


def shortened(names: Sequence[str], length: int = 18) -> list[str]:
    """Cut long names in the middle, because their ends often tell them apart; number those that then look alike.

    A name that no font can draw is its number.
    """
    names = [drawable(name, f"#{place}") for place, name in enumerate(names)]
    tail = length // 2 - 1
    head = length - 1 - tail
    short = [name if len(name) <= length else f"{name[:head].rstrip()}…{name[-tail:].lstrip()}" for name in names]
    alike = Counter(short)
    return [f"{text[: length - 5]} #{place}" if alike[text] > 1 else text for place, text in enumerate(short)]
