"""Figures of the heads in closed form: accuracy against bytes, confusion of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedstats_app.heads import ConfusionMatrix
from fedstats_app.methods import display_name
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.plots.style import (
    INK,
    METHOD_COLOURS,
    MUTED,
    PER_CENT,
    binned,
    log_x,
    new_figure,
    plot_style,
    quiet_axes,
    save_png,
    set_title,
    shortened,
)
from fedstats_app.report.text_columns import bytes_with_unit

_MARKERS = "osD^vPX"  # points that coincide show their outlines
_MOST_NUMBERS, _MOST_NAMES, _MOST_CELLS = 20, 100, 600


class CostPoint(NamedTuple):
    """One method's place in the plot: 10^6 bytes (more than 0) that all clients together send, accuracy from 0 to 1."""

    label: str
    megabytes: float
    accuracy: float


@plot_style()
def accuracy_figure(points: Sequence[CostPoint], title: str) -> Figure:
    """Draw accuracy over megabytes up (log), one point per method, at least one, and their Pareto front."""
    figure = new_figure(8.5, max(4.6, 0.43 * len(points)))
    axes = figure.add_subplot()
    log_x(axes, [1e6 * point.megabytes for point in points], "B")
    front = pareto_front(points)
    ends = [*(1e6 * point.megabytes for point in front), axes.get_xlim()[1]]
    heights = [100 * point.accuracy for point in (*front, front[-1])]
    axes.step(ends, heights, where="post", color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    for index, point in enumerate(points):
        sent, accuracy = 1e6 * point.megabytes, 100 * point.accuracy
        again, colour = divmod(index, len(METHOD_COLOURS))  # a colour that comes again has another marker
        marker = _MARKERS[(colour + again) % len(_MARKERS)]
        text = f"{point.label}\n{accuracy:.1f} %, {bytes_with_unit(sent)}"
        look: dict[str, Any] = {"markersize": 9, "markeredgecolor": "white", "zorder": 3}
        axes.plot(sent, accuracy, marker, color=METHOD_COLOURS[colour], label=text, **look)
    set_title(axes, title, "dashed: the most accurate method for the bytes", inches=7.0)
    axes.set_xlabel("sent by all sites together (log scale)")
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PER_CENT)
    axes.margins(y=0.12)
    quiet_axes(axes, "y")
    figure.legend(loc="outside right upper", labelspacing=0.9)
    return figure


def pareto_front(points: Sequence[CostPoint]) -> list[CostPoint]:
    """Points that no other beats in accuracy for the same or fewer bytes, by growing bytes."""
    front: list[CostPoint] = []
    for point in sorted(points, key=lambda point: (point.megabytes, -point.accuracy)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return front


def _name_classes(axis: Axis, names: Sequence[str], label: str) -> None:
    """Write the names of up to 100 classes, else numbers."""
    if len(names) > _MOST_NAMES:
        axis.set_label_text(f"number of the {label}")
        axis.set_major_locator(MaxNLocator(10, integer=True))
        return
    axis.set_label_text(label)
    size = 9 if len(names) <= _MOST_NUMBERS else 6
    axis.set_ticks(range(len(names)), names, fontsize=size)
    axis.set_tick_params(length=0)


@plot_style()
def confusion_figure(matrix: ConfusionMatrix, class_names: Sequence[str], title: str) -> Figure:
    """Draw C true classes (rows) by predicted ones, with numbers for up to 20 classes, names for 100."""
    num_classes = len(class_names)
    height = float(np.clip(3.0 + 0.42 * num_classes, 4.8, 10.0))
    figure = new_figure(height + 0.6, height)
    axes = figure.add_subplot()
    cells = binned(matrix.matrix.numpy(), _MOST_CELLS)
    totals = binned(matrix.class_examples.numpy()[:, None], len(cells))
    shares = np.ma.masked_invalid(np.divide(100 * cells, totals, out=np.full(cells.shape, np.nan), where=totals > 0))
    edge = num_classes - 0.5
    # The square root makes rare confusions visible beside the diagonal.
    image = axes.imshow(shares, "Blues", PowerNorm(0.5, 0, 100), extent=(-0.5, edge, edge, -0.5))
    axes.set_facecolor("#e2e2e2")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, ticks=[0, 5, 20, 50, 100], pad=0.02, shrink=0.6, label="% of the true class")
    names = shortened(class_names)
    _name_classes(axes.xaxis, names, "predicted class")
    _name_classes(axes.yaxis, names, "true class")
    axes.tick_params(axis="x", rotation=90)
    if num_classes <= _MOST_NUMBERS:
        for (row, column), share in np.ndenumerate(shares.filled(0.0)):
            if share > 0.5:  # what rounds to 0 is left blank
                colour = "white" if share > 35 else INK
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", fontsize=8, color=colour)
    set_title(axes, title, _summary(matrix), inches=height)
    return figure


def _summary(matrix: ConfusionMatrix) -> str:
    if not matrix.num_examples:
        return "no test samples"
    text = f"accuracy {100 * matrix.accuracy:.1f} % of {matrix.num_examples:,} test samples"
    if unnamed := matrix.num_examples - int(matrix.matrix.sum()):
        text += f", of which {unnamed:,} without their class"
    missing = int((matrix.class_examples == 0).sum())
    return text + (f"; grey: no test samples ({missing})" if missing else "")


def write_plots(
    folder: Path,
    results: Sequence[MethodResult],
    *,
    class_names: Sequence[str],
    confusion_matrices: Mapping[str, ConfusionMatrix],
    dataset: str,
    backbone: str,
) -> list[Path]:
    """Write every figure of the first stage that there is data for into a folder, and return the files.

    These are accuracy-vs-megabytes.png of the methods with an accuracy and with bytes sent, and
    confusion-matrix-<method>.png of each.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def write(figure: Figure, name: str) -> None:
        written.append(folder / f"{name}.png")
        save_png(figure, written[-1])

    points = {
        result.method: CostPoint(display_name(result.method), result.wire_bytes / 1e6, result.accuracy)
        for result in results
        if result.accuracy is not None and result.wire_bytes > 0
    }
    if points:
        title = f"{dataset}, {backbone}, {max(result.num_clients for result in results):,} sites"
        write(accuracy_figure(list(points.values()), title), "accuracy-vs-megabytes")
    for method, matrix in confusion_matrices.items():
        write(
            confusion_figure(matrix, class_names, f"{display_name(method)} on {dataset}"), f"confusion-matrix-{method}"
        )
    return written
