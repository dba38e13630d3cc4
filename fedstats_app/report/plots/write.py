"""All plots of a run."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from numpy.typing import ArrayLike

from fedstats_app.methods import display_name
from fedstats_app.report.curve import CurvePoint
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.plots.accuracy import CostPoint, plot_accuracy_vs_megabytes
from fedstats_app.report.plots.confusion import plot_confusion_matrix
from fedstats_app.report.plots.labels import plot_label_distribution


def write_plots(
    folder: Path,
    results: Sequence[MethodResult],
    *,
    class_names: Sequence[str],
    label_counts: ArrayLike | None,
    confusion_matrices: Mapping[str, ArrayLike],
    dataset: str,
    backbone: str,
    curves: Mapping[str, Sequence[CurvePoint]],
) -> list[Path]:
    """Write every plot that there is data for.

    Parameters
    ----------
    folder : Path
        Where to; made if it does not exist.
    results : sequence of MethodResult
        Those with an accuracy and with bytes sent are shown against each other, by the bytes as sent.
    class_names : sequence of str
        C names.
    label_counts : array_like of int or None
        (K, C) samples per client and class; None where the server does not know them.
    confusion_matrices : mapping of str to array_like of int
        Method name to (C, C), rows true, columns predicted.
    dataset, backbone : str
        For the headings.
    curves : mapping of str to sequence of CurvePoint
        Method name to its points, drawn where the method is shown.

    Returns
    -------
    list of Path
        The files written: accuracy-vs-megabytes.png, label-distribution.png, confusion-matrix-<method>.png.

    Raises
    ------
    ValueError
        If an array does not have the shape that the class names ask for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    points = [
        CostPoint(display_name(result.method), result.wire_bytes / 1e6, result.accuracy)
        for result in results
        if result.accuracy is not None and result.wire_bytes > 0
    ]
    if points:
        clients = max(result.num_clients for result in results)
        written.append(folder / "accuracy-vs-megabytes.png")
        title = f"{dataset}, {backbone}, {clients:,} clients"
        plot_accuracy_vs_megabytes(points, written[-1], title, _lines(curves, {point.label for point in points}))
    if label_counts is not None:
        written.append(folder / "label-distribution.png")
        plot_label_distribution(label_counts, class_names, written[-1], f"{dataset}: samples per client and class")
    for method, matrix in confusion_matrices.items():
        written.append(folder / f"confusion-matrix-{method}.png")
        plot_confusion_matrix(matrix, class_names, written[-1], f"{display_name(method)} on {dataset}")
    return written


def _lines(curves: Mapping[str, Sequence[CurvePoint]], shown: Collection[str]) -> list[list[CostPoint]]:
    named = ((display_name(method), curve) for method, curve in curves.items())
    lines = [
        [CostPoint(name, point.wire_bytes / 1e6, point.accuracy) for point in curve if point.wire_bytes > 0]
        for name, curve in named
        if name in shown
    ]
    return [line for line in lines if line]
