"""How the classes are spread over the clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray

from fedstats_app.report.plots.style import (
    CLASS_COLOURS,
    group_size,
    log_ticks,
    new_figure,
    plot_style,
    save_png,
    set_title,
    shortened,
    sum_groups,
    whole,
)

_MOST_CLASSES_IN_BARS = 20
_MOST_CLIENTS_IN_BARS = 150
_MOST_CLIENTS_WITH_NAMES = 30
_MOST_CLASSES_WITH_NAMES = 120
_ROW_HEIGHT = 0.105  # inches, of the smallest names that can be read
_MOST_COLUMNS = 1000  # of the heat map; more clients share a column
_MOST_ROWS = 600
# One sample must stand out from none, which is left almost white.
_COUNT_COLOURS = LinearSegmentedColormap.from_list("counts", mpl.colormaps["YlGnBu"](np.linspace(0.3, 1.0, 64)))


def plot_label_distribution(
    counts: ArrayLike, class_names: Sequence[str], path: Path, title: str = "Samples per client and class"
) -> None:
    """Draw samples per client and class: stacked bars, or a heat map for more than 20 classes or 150 clients.

    Parameters
    ----------
    counts : array_like of int
        (K, C): samples of each class at each client.
    class_names : sequence of str
        C names.
    path : Path
        PNG file to write.
    title : str
        Heading.

    Raises
    ------
    ValueError
        If `counts` is not (K, C) with K, C > 0, has a negative entry, or does not go with `class_names`.
    """
    table = _checked_counts(counts, class_names)
    with plot_style():
        save_png(label_figure(table, class_names, title), path)


def label_figure(counts: NDArray[np.int64], class_names: Sequence[str], title: str) -> Figure:
    """Build the figure; call it within `plot_style`."""
    num_clients, num_classes = counts.shape
    if num_classes > _MOST_CLASSES_IN_BARS or num_clients > _MOST_CLIENTS_IN_BARS:
        return _heat_map(counts, class_names, title)
    return _bars(counts, class_names, title)


def _checked_counts(counts: ArrayLike, class_names: Sequence[str]) -> NDArray[np.int64]:
    table = np.asarray(counts)
    if table.ndim != 2 or 0 in table.shape or table.shape[1] != len(class_names):
        raise ValueError(f"label counts must be (clients, {len(class_names)} classes), not empty, got {table.shape}")
    if not np.issubdtype(table.dtype, np.integer) or table.min() < 0:
        raise ValueError(f"label counts must be integers of at least 0, got {table.dtype} from {table.min()}")
    return table.astype(np.int64)


def _summary(counts: NDArray[np.int64]) -> str:
    samples = _median_and_range(counts.sum(axis=1), "samples")
    classes = _median_and_range(np.count_nonzero(counts, axis=1), "classes")
    return f"{len(counts):,} clients, {counts.sum():,} samples; per client {samples}, {classes}"


def _median_and_range(values: NDArray[np.int64], what: str) -> str:
    low, high = values.min(), values.max()
    text = f"{np.median(values):,.10g} {what}"
    return text if low == high else f"{text} (median; {low:,} to {high:,})"


def _bars(counts: NDArray[np.int64], class_names: Sequence[str], title: str) -> Figure:
    num_clients, num_classes = counts.shape
    with_names = num_clients <= _MOST_CLIENTS_WITH_NAMES
    height = max(2.2 + 0.26 * num_clients, 1.6 + 0.24 * num_classes)
    figure = new_figure(9.0, height) if with_names else new_figure(11.0, 4.8)
    axes = figure.add_subplot()
    clients = np.arange(num_clients)
    starts = np.cumsum(counts, axis=1) - counts
    thickness = 0.8 if with_names else 0.9
    for index, name in enumerate(shortened(class_names)):
        # One collection a class: a thousand bars of their own take a second and a half.
        low, high = clients - thickness / 2, clients + thickness / 2
        first, last = starts[:, index], starts[:, index] + counts[:, index]
        corners = np.stack([low, first, low, last, high, last, high, first], axis=1).reshape(-1, 4, 2)
        bars = corners[counts[:, index] > 0, :, :: -1 if with_names else 1]
        look: dict[str, Any] = {"facecolor": _class_colour(index), "edgecolor": "white", "linewidth": 0.3}
        axes.add_collection(PolyCollection(list(bars), label=name, **look), autolim=False)
    longest = max(int(counts.sum(axis=1).max()) * 1.05, 1.0)
    (axes.set_xlim if with_names else axes.set_ylim)(0, longest)
    _name_axes(axes, num_clients, horizontal=with_names)
    set_title(axes, title, _summary(counts), inches=figure.get_figwidth() - 1.5)
    handles, names = axes.get_legend_handles_labels()
    order = slice(None) if with_names else slice(None, None, -1)  # the order in which the bars are stacked
    figure.legend(handles[order], names[order], loc="outside right center", frameon=False, handlelength=1.0, fontsize=9)
    return figure


def _class_colour(index: int) -> tuple[float, float, float]:
    """Ten colours, then their paler versions."""
    code = CLASS_COLOURS[index % len(CLASS_COLOURS)]
    colour = [int(code[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    paleness = 0.0 if index < len(CLASS_COLOURS) else 0.55
    red, green, blue = (part + paleness * (1 - part) for part in colour)
    return red, green, blue


def _name_axes(axes: Axes, num_clients: int, *, horizontal: bool) -> None:
    client_axis, size_axis = (axes.yaxis, axes.xaxis) if horizontal else (axes.xaxis, axes.yaxis)
    size_axis.set_label_text("samples")
    size_axis.set_major_formatter(whole)
    size_axis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    client_axis.set_label_text("client")
    client_axis.set_major_locator(MaxNLocator(num_clients if horizontal else 11, integer=True))
    client_axis.set_tick_params(length=0)
    if horizontal:
        axes.set_yticks(range(num_clients))
        axes.set_ylim(num_clients - 0.4, -0.6)  # client 0 at the top
    else:
        axes.set_xlim(-0.8, num_clients - 0.2)


def _heat_map(counts: NDArray[np.int64], class_names: Sequence[str], title: str) -> Figure:
    num_clients, num_classes = counts.shape
    ordered = counts[np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))]
    clients_per_column = group_size(num_clients, _MOST_COLUMNS)
    classes_per_row = group_size(num_classes, _MOST_ROWS)
    image = sum_groups(sum_groups(ordered, clients_per_column, axis=0), classes_per_row, axis=1).T
    most = max(int(image.max()), 2)
    height = float(np.clip(1.9 + 0.3 * num_classes, 3.4, 6.5))
    if num_classes <= _MOST_CLASSES_WITH_NAMES:
        height = max(height, 1.9 + _ROW_HEIGHT * num_classes)
    figure = new_figure(11.0, height)
    axes = figure.add_subplot()
    drawn = axes.imshow(
        np.ma.masked_equal(image, 0),
        cmap=_COUNT_COLOURS,
        norm=LogNorm(1, most),
        aspect="auto",
        interpolation="nearest",
        extent=(0, num_clients, num_classes, 0),
    )
    axes.set_facecolor("#f7f7f7")
    axes.set_xlabel("clients, ordered by their most frequent class")
    axes.xaxis.set_major_formatter(whole)
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    if num_classes <= _MOST_CLASSES_WITH_NAMES:
        axes.set_yticks(np.arange(num_classes) + 0.5, shortened(class_names))
        axes.tick_params(axis="y", length=0, labelsize=10 if num_classes <= 20 else 7 if num_classes <= 40 else 6)
    else:
        axes.set_ylabel("number of the class")
        axes.yaxis.set_major_locator(MaxNLocator(10, integer=True))
    set_title(axes, title, _summary(counts), inches=figure.get_figwidth() - 1.0)
    what = "samples" if clients_per_column * classes_per_row == 1 else "samples in a cell"
    if clients_per_column > 1 or classes_per_row > 1:
        what += f" ({clients_per_column} clients x {classes_per_row} classes)"
    bar = figure.colorbar(drawn, ax=axes, label=f"{what}, log scale", ticks=log_ticks(1, most), pad=0.01, aspect=30)
    bar.ax.yaxis.set_major_formatter(whole)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)
    return figure
