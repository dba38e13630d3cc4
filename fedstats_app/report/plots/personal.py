"""How the clients fare with each way to models of their own."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedstats_app.report.plots.style import (
    INK,
    METHOD_COLOURS,
    new_figure,
    per_cent,
    plot_style,
    quiet_axes,
    save_png,
    set_title,
    shortened,
)

_WIDTH = 8.0  # inches
_ROW_HEIGHT, _FRAME_HEIGHT = 0.42, 1.6
# Names and numbers beside the axes take up to so much more than a plot's usual margin.
_MARGINS = 1.6
_SUBTITLE = "one dot per client; box: quartiles and median; diamond: mean; right: mean ± deviation over clients"
# Dots of clients are spread over this part of a row, from the first client at the top to the last.
_SPREAD = 0.5
_MOST_DOTS = 300


def plot_personal_accuracies(accuracies: Mapping[str, Sequence[float]], path: Path, title: str) -> None:
    """Draw one box of clients' accuracies per approach.

    Parameters
    ----------
    accuracies : mapping of str to sequence of float
        From an approach, as it is to be shown, to its clients' accuracies, 0 to 1, in the order of the clients;
        approaches without any are left out.
    path : Path
        PNG file to write.
    title : str
        Such as dataset, backbone and number of clients.

    Raises
    ------
    ValueError
        If no approach has an accuracy, or one lies outside [0, 1].
    """
    with plot_style():
        save_png(personal_figure(accuracies, title), path)


def personal_figure(accuracies: Mapping[str, Sequence[float]], title: str) -> Figure:
    """Build the figure; call it within `plot_style`."""
    rows = {name: 100 * np.array(values, dtype=np.float64) for name, values in accuracies.items() if len(values)}
    if not rows:
        raise ValueError("personal accuracies: there must be at least one approach with an accuracy, got none")
    for name, values in rows.items():
        if not ((values >= 0) & (values <= 100)).all():
            raise ValueError(f"{name}: accuracies must be between 0 and 1")
    figure = new_figure(_WIDTH, _FRAME_HEIGHT + _ROW_HEIGHT * len(rows))
    axes = figure.add_subplot()
    set_title(axes, title, _SUBTITLE, inches=_WIDTH - _MARGINS)
    for row, (name, values) in enumerate(rows.items()):
        _draw_row(axes, row, values, METHOD_COLOURS[_family(name, list(rows)) % len(METHOD_COLOURS)])
    _set_up_axes(axes, shortened(list(rows), 30))
    return figure


def _family(name: str, names: Sequence[str]) -> int:
    """Return which colour: the same for approaches whose names begin alike ("global head, ...")."""
    families = list(dict.fromkeys(one.split(",")[0] for one in names))
    return families.index(name.split(",")[0])


def _draw_row(axes: Axes, row: int, values: np.ndarray, colour: str) -> None:
    axes.boxplot(
        [values],
        positions=[row],
        orientation="horizontal",
        widths=0.62,
        whis=(0, 100),
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": "white", "edgecolor": colour, "linewidth": 1.1},
        whiskerprops={"color": colour, "linewidth": 0.9},
        capprops={"color": colour, "linewidth": 0.9},
        medianprops={"color": colour, "linewidth": 1.8},
    )
    if len(values) <= _MOST_DOTS:
        offsets = np.linspace(-_SPREAD / 2, _SPREAD / 2, len(values)) if len(values) > 1 else np.zeros(1)
        axes.plot(values, row + offsets, "o", markersize=3.2, color=colour, alpha=0.45, markeredgewidth=0)
    mean = float(values.mean())
    axes.plot(mean, row, "D", markersize=5.5, color=INK, markeredgecolor="white", markeredgewidth=0.9, zorder=5)
    axes.annotate(
        f"{mean:.1f} ± {values.std():.1f}",
        (1, row),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        fontsize=9,
    )


def _set_up_axes(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(_lowest(axes), 101)
    axes.xaxis.set_major_formatter(per_cent)
    axes.set_xlabel("accuracy on the client's own test samples")
    quiet_axes(axes, "x")


def _lowest(axes: Axes) -> float:
    """Return where the axis begins: at 0, or at a round number below all accuracies if they are far from it."""
    lowest = min(float(np.min(line.get_xdata())) for line in axes.lines)
    return max(-1.0, 10.0 * math.floor((lowest - 5) / 10))
