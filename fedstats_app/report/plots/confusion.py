"""The confusion matrix, each row in per cent of the samples of its class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from fedstats_app.report.plots.style import (
    INK,
    MUTED,
    group_size,
    new_figure,
    plot_style,
    save_png,
    set_title,
    shortened,
    sum_groups,
)

_MOST_CLASSES_WITH_NUMBERS = 20
_MOST_CLASSES_WITHOUT_LIST = 50
_MOST_CLASSES_WITH_NAMES = 120
_ROW_HEIGHT = 0.105  # inches, of the smallest names that can be read
_MOST_CELLS = 300  # along a side; more classes share a cell
_PAIRS_PER_INCH = 1.7
_LONGEST_IN_PAIR = 22
_PANEL_WIDTH = 4.2  # inches
_PANEL_MARGIN = 0.08  # clear of the colour bar's label


def plot_confusion_matrix(matrix: ArrayLike, class_names: Sequence[str], path: Path, title: str) -> None:
    """Draw a confusion matrix: with numbers for up to 20 classes, with names for up to 120.

    Beyond 50 classes the most confused pairs are listed beside it.

    Parameters
    ----------
    matrix : array_like of int
        (C, C): rows are true classes, columns are predicted ones.
    class_names : sequence of str
        C names.
    path : Path
        PNG file to write.
    title : str
        Heading.

    Raises
    ------
    ValueError
        If `matrix` is not (C, C) integers of at least 0, or does not go with `class_names`.
    """
    counts = _checked_matrix(matrix, class_names)
    with plot_style():
        save_png(confusion_figure(counts, class_names, title), path)


def confusion_figure(counts: NDArray[np.int64], class_names: Sequence[str], title: str) -> Figure:
    """Build the figure; call it within `plot_style`."""
    num_classes = len(counts)
    names = shortened(class_names)
    side_panel = num_classes > _MOST_CLASSES_WITHOUT_LIST
    height = float(np.clip(3.0 + 0.42 * num_classes, 4.8, 8.0))
    if num_classes <= _MOST_CLASSES_WITH_NAMES:
        height = max(height, 2.4 + _ROW_HEIGHT * num_classes)
    width = height + 0.6
    figure = new_figure(width + _PANEL_WIDTH, width) if side_panel else new_figure(width, height)
    grid = figure.add_gridspec(1, 2 if side_panel else 1, width_ratios=[width, _PANEL_WIDTH] if side_panel else None)
    main = figure.add_subfigure(grid[0])
    axes = main.add_subplot()
    group = group_size(num_classes, _MOST_CELLS)
    shares = row_shares(sum_groups(sum_groups(counts, group, axis=0), group, axis=1))
    _draw_shares(main, axes, shares, num_classes)
    _name_classes(axes, names)
    if num_classes <= _MOST_CLASSES_WITH_NUMBERS:
        _write_numbers(axes, shares)
    if side_panel:
        listed = shortened(class_names, _LONGEST_IN_PAIR)
        _list_confused_pairs(figure.add_subfigure(grid[1]).add_subplot(), counts, listed, int(_PAIRS_PER_INCH * width))
    cells = f"; {group} x {group} classes in a cell" if group > 1 else ""
    set_title(axes, title, _summary(counts) + cells, inches=width)
    return figure


def row_shares(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give the share of each true class's samples by predicted class; NaN for classes without samples."""
    totals = counts.sum(axis=1, keepdims=True)
    shares: NDArray[np.float64] = np.divide(counts, totals, out=np.full(counts.shape, np.nan), where=totals > 0)
    return shares


def most_confused_pairs(counts: NDArray[np.int64], number: int) -> list[tuple[int, int]]:
    """Give the (true, predicted) pairs of different classes with the most samples, most first, then by class."""
    errors = counts.copy()
    np.fill_diagonal(errors, 0)
    order = np.argsort(-errors, axis=None, kind="stable")[:number]
    true, predicted = np.unravel_index(order, errors.shape)
    return [(int(row), int(column)) for row, column in zip(true, predicted, strict=True) if errors[row, column] > 0]


def _checked_matrix(matrix: ArrayLike, class_names: Sequence[str]) -> NDArray[np.int64]:
    counts = np.asarray(matrix)
    size = len(class_names)
    if size == 0 or counts.shape != (size, size):
        raise ValueError(
            f"confusion matrix must be ({size}, {size}) for {size} class names, not empty, got {counts.shape}"
        )
    if not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
        raise ValueError(f"confusion matrix must have integers of at least 0, got {counts.dtype} from {counts.min()}")
    return counts.astype(np.int64)


def _summary(counts: NDArray[np.int64]) -> str:
    total = int(counts.sum())
    if total == 0:
        return "no test samples"
    text = f"accuracy {100 * np.trace(counts) / total:.1f} % of {total:,} test samples"
    missing = int(np.count_nonzero(counts.sum(axis=1) == 0))
    return text + (f"; grey: no test samples ({missing})" if missing else "")


def _draw_shares(figure: SubFigure, axes: Axes, shares: NDArray[np.float64], num_classes: int) -> None:
    image = axes.imshow(
        np.ma.masked_invalid(100 * shares),
        cmap="Blues",
        norm=PowerNorm(0.5, 0, 100),  # the square root makes rare confusions visible beside the diagonal
        interpolation="nearest",
        extent=(-0.5, num_classes - 0.5, num_classes - 0.5, -0.5),
    )
    axes.set_facecolor("#e2e2e2")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, ticks=[0, 5, 20, 50, 100], pad=0.02, shrink=0.6, label="% of the true class")
    bar.outline.set_visible(False)


def _name_classes(axes: Axes, names: Sequence[str]) -> None:
    axes.tick_params(length=0, pad=5)
    if len(names) > _MOST_CLASSES_WITH_NAMES:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(10, integer=True))
        axes.set_xlabel("number of the predicted class")
        axes.set_ylabel("number of the true class")
        return
    size = 9 if len(names) <= _MOST_CLASSES_WITH_NUMBERS else 6
    slant = 90 if len(names) > 12 else 40
    axes.set_xticks(
        range(len(names)), names, rotation=slant, rotation_mode="anchor", ha="right", va="center", fontsize=size
    )
    axes.set_yticks(range(len(names)), names, fontsize=size)


def _write_numbers(axes: Axes, shares: NDArray[np.float64]) -> None:
    size = 9 if len(shares) <= 12 else 7
    for (row, column), share in np.ndenumerate(shares):
        if share > 0.005:  # what rounds to 0 is left blank; so is NaN
            colour = "white" if share > 0.35 else INK
            number = axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=size, color=colour)
            number.set_in_layout(False)  # it lies within its cell: measuring hundreds of them takes longer than drawing


def _list_confused_pairs(axes: Axes, counts: NDArray[np.int64], names: Sequence[str], number: int) -> None:
    axes.set_axis_off()
    axes.set_title("most confused", loc="left", x=_PANEL_MARGIN, fontsize=10, fontweight="bold")
    totals = counts.sum(axis=1)
    for line, (true, predicted) in enumerate(most_confused_pairs(counts, number)):
        height = 1 - (line + 0.5) / number
        samples = counts[true, predicted]
        axes.text(_PANEL_MARGIN, height, f"{names[true]} → {names[predicted]}", va="bottom", fontsize=9)
        axes.text(_PANEL_MARGIN, height, f"{samples:,} of {totals[true]:,}", va="top", fontsize=8, color=MUTED)
