"""What the plots have in common: look, colours, text, writing the file."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedstats_app.results.files import write_atomically

INK = "#222222"
MUTED = "#6b6b6b"
FAINT = "#d9d9d9"

# Two qualitative schemes that colour-blind readers can tell apart: Okabe & Ito 2008 without yellow (too pale for text),
# and Tol's "muted" (technical note SRON/EPS/TN/09-002).
METHOD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
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

_STYLE: dict[str, object] = {
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
    """Make a figure of a size in inches with an Agg canvas."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_png(figure: Figure, path: Path) -> None:
    """Write the figure as PNG, the same bytes for the same figure and version of matplotlib."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    write_atomically(path, buffer.getvalue())


def set_title(axes: Axes, title: str, subtitle: str) -> None:
    """Put a bold title and a grey line below it at the top left of the axes."""
    axes.set_title(f"{title}\n", loc="left", fontsize=12, fontweight="bold")
    axes.annotate(
        subtitle, (0, 1), xytext=(0, 6), xycoords="axes fraction", textcoords="offset points", color=MUTED, fontsize=9
    )


def shortened(names: Sequence[str], length: int = 18) -> list[str]:
    """Cut long names, so that they leave room for the data."""
    return [name if len(name) <= length else name[: length - 1].rstrip() + "…" for name in names]
