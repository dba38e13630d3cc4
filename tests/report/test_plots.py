"""Figures show the numbers that they are given, at every size, and their files are the same again."""

import functools
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from fedstats_app.heads import ConfusionMatrix
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.plots.first_stage import (
    CostPoint,
    accuracy_figure,
    confusion_figure,
    pareto_front,
    write_plots,
)
from fedstats_app.report.plots.later_stages import training_figure
from fedstats_app.report.plots.style import METHOD_COLOURS, png_bytes, save_png
from tests.support.trainings import make_training

POINTS = [CostPoint("FedNCM", 1.7, 0.751), CostPoint("Fed3R", 657.0, 0.862), CostPoint("FedCOF", 1.7, 0.834)]


def counts(rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, 50, (rows, columns))


def names(number: int) -> list[str]:
    return [f"a rather long class name, no. {index}" for index in range(number)]


def texts(figure: Figure) -> str:
    return " | ".join(text.get_text().replace("\n", " ") for text in figure.findobj(Text) if text.get_visible())


def points_of(line: Any) -> list[tuple[float, float]]:
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


# Cuneiform, and a place for private use.
UNKNOWN = ["\U00012000\U00012001", "\U0010ffff class"]
FIGURES: dict[str, tuple[Callable[..., Figure], Any]] = {"accuracy": (accuracy_figure, POINTS)}
EDGES: dict[str, Callable[[], Figure]] = {
    "one point": lambda: accuracy_figure(POINTS[:1], "Title"),
    "names that no font has": lambda: confusion_figure(
        ConfusionMatrix(torch.from_numpy(counts(2, 2))), UNKNOWN, UNKNOWN[1]
    ),
    "a title that no font has": lambda: accuracy_figure(POINTS[:1], UNKNOWN[0]),
    "many classes": lambda: confusion_figure(ConfusionMatrix(torch.from_numpy(counts(101, 101))), names(101), "Title"),
}


@pytest.mark.parametrize("figure", EDGES)
def test_few_and_many_can_be_drawn(figure: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert png_bytes(EDGES[figure]()).startswith(b"\x89PNG")


@pytest.mark.parametrize("figure", FIGURES)
def test_a_file_is_the_same_from_another_thread_and_the_users_style_stays(figure: str, tmp_path: Path) -> None:
    draw, data = FIGURES[figure]
    with mpl.rc_context({"font.size": 37.0, "text.usetex": True, "savefig.dpi": 10}):
        thread = threading.Thread(target=lambda: save_png(draw(data, "Title"), tmp_path / "plot.png"))
        thread.start()
        thread.join(timeout=60)
        assert mpl.rcParams["font.size"] == 37.0
    assert (tmp_path / "plot.png").read_bytes() == png_bytes(draw(data, "Title"))
    with Image.open(tmp_path / "plot.png") as image:
        assert image.format == "PNG" and min(image.size) > 250
        assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) > 20


@given(st.lists(st.builds(CostPoint, st.just("x"), st.sampled_from([0.5, 1.0, 7.0]), st.sampled_from([0.1, 0.2, 0.3]))))
def test_the_front_is_what_no_point_beats(points: list[CostPoint]) -> None:
    def beaten(point: CostPoint) -> bool:
        return any(
            other.megabytes <= point.megabytes and other.accuracy >= point.accuracy and other != point
            for other in points
        )

    front = pareto_front(points)
    assert set(front) == {point for point in points if not beaten(point)}
    assert [point.megabytes for point in front] == sorted({point.megabytes for point in front})


def test_methods_and_their_front_are_where_they_belong() -> None:
    figure = accuracy_figure(POINTS, "CIFAR-100, 100 clients")
    axes = figure.axes[0]
    front, *dots = axes.lines
    assert axes.get_xscale() == "log"
    assert [points_of(dot)[0] for dot in dots] == [(1e6 * one.megabytes, 100 * one.accuracy) for one in POINTS]
    assert [*front.get_xdata()[:2], *front.get_ydata()[:2]] == pytest.approx([1.7e6, 657e6, 83.4, 86.2])
    assert "Fed3R 86.2 %, 657.0 MB" in texts(figure)


def test_cells_hold_per_cent_of_the_true_class() -> None:
    matrix = torch.tensor([[3, 1, 0], [0, 0, 0], [1, 996, 1]])
    figure = confusion_figure(ConfusionMatrix(matrix, 2, 1, torch.tensor([0, 0, 2])), list("abc"), "Title")
    numbers = {(text.get_position(), text.get_text()) for text in figure.axes[0].texts[:-1]}  # but the subtitle
    assert numbers == {((0, 0), "75"), ((1, 0), "25"), ((1, 2), "100")}
    assert "accuracy 0.5 % of 1,006 test samples, of which 4 without their class; grey: no test" in texts(figure)
    assert "no test samples" in texts(confusion_figure(ConfusionMatrix.zeros(3), list("abc"), "Title"))
    assert "number of the true class" in texts(EDGES["many classes"]())


def lines_of(axes: Axes) -> dict[str, Any]:
    return {str(line.get_label()): line for line in axes.lines if line.get_marker() != "*"}


def stars(axes: Axes) -> list[tuple[float, float]]:
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes.lines if line.get_marker() == "*"]


def test_three_panels_show_the_same_accuracies_over_rounds_bytes_and_passes() -> None:
    costs = {"up": 10**6, "down": 10**6, "passes": 70, "start_bytes": 500_000, "start_forward_passes": 35}
    panels = training_figure([make_training("fedcof", [0.8, 0.85, 0.9], **costs)], "Title").axes  # type: ignore[arg-type]
    for axes, costs_shown in zip(panels, ([0, 1, 2], [0.5e6, 2.5e6, 4.5e6], [35, 105, 175]), strict=True):
        line = lines_of(axes)["FedCOF"]
        assert [*line.get_xdata(), *line.get_ydata()] == pytest.approx([*costs_shown, 80, 85, 90])
        assert line.get_color() == METHOD_COLOURS[2]
        assert stars(axes) == [(pytest.approx(costs_shown[0]), pytest.approx(80))]
    assert [axes.get_xscale() for axes in panels] == ["linear", "log", "log"]


write = functools.partial(
    write_plots,
    class_names=["a", "b"],
    dataset="sample",
    backbone="random:tiny",
    confusion_matrices={},
)


def test_every_plot_that_there_is_data_for_is_written(tmp_path: Path, make_result: Callable[..., MethodResult]) -> None:
    results = [make_result("fedncm"), make_result("fed3r", 0.86, wire_bytes=657_000_000), make_result("fedcgs", None)]
    matrices = {name: ConfusionMatrix(torch.tensor([[3, 1], [0, 4]])) for name in ("fedncm", "fed3r")}
    paths = write(tmp_path / "plots", results, confusion_matrices=matrices)
    matrices_drawn = ["confusion-matrix-fedncm.png", "confusion-matrix-fed3r.png"]
    assert [path.name for path in paths] == ["accuracy-vs-megabytes.png", *matrices_drawn]
    assert sorted(paths) == sorted((tmp_path / "plots").iterdir())
    for nothing in ([], [make_result("fedncm", None)], [make_result("fedncm", wire_bytes=0)]):
        assert not write(tmp_path / "empty", nothing) and not list((tmp_path / "empty").iterdir())
