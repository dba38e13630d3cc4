import threading
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.path import Path as Outline
from matplotlib.text import Annotation
from PIL import Image

from fedstats_app.report.plots.accuracy import CostPoint, accuracy_figure, pareto_front, plot_accuracy_vs_megabytes
from fedstats_app.report.plots.style import plot_style
from tests.report.plots.conftest import Check

_USUAL = [
    CostPoint("FedNCM", 1.7, 0.751),
    CostPoint("Fed3R", 657.0, 0.862),
    CostPoint("FedCOF", 1.7, 0.834),
    CostPoint("FedCGS", 660.0, 0.861),
]
_CURVE = [
    CostPoint("FedCOF", megabytes, accuracy)
    for megabytes, accuracy in [(1.7, 0.815), (2.4, 0.836), (2.9, 0.848), (3.9, 0.85), (5.9, 0.856), (300.0, 0.86)]
]
_POINTS = st.builds(
    CostPoint, st.just("x"), st.sampled_from([0.5, 1.0, 7.0, 900.0]), st.integers(0, 20).map(lambda n: n / 20)
)


@given(st.lists(_POINTS, min_size=1, max_size=8))
def test_the_front_is_what_no_point_beats(points: list[CostPoint]) -> None:
    def beaten(point: CostPoint) -> bool:
        return any(
            other.megabytes <= point.megabytes
            and other.accuracy >= point.accuracy
            and (other.megabytes, other.accuracy) != (point.megabytes, point.accuracy)
            for other in points
        )

    front = pareto_front(points)
    assert set(front) == {point for point in points if not beaten(point)}
    assert [point.megabytes for point in front] == sorted({point.megabytes for point in front})


@pytest.mark.parametrize(
    "points",
    [
        _USUAL,
        [CostPoint(f"Method {index}", 5.88, 0.5) for index in range(7)],
        [CostPoint(f"Method {index}", 100.0 * 1.02**index, 0.5 + 0.001 * index) for index in range(7)],
        [CostPoint("FedNCM", 0.0004, 0.0), CostPoint("CCVR", 358_040.5, 1.0)],
        _USUAL[:1],
    ],
    ids=["usual", "all the same", "close together", "extremes", "one"],
)
def test_no_label_lies_over_another_or_is_cut_off(points: list[CostPoint], check_texts: Check) -> None:
    texts = check_texts(accuracy_figure(points, "CIFAR-100, squeezenet1_1, 100 clients"))
    for point in points:
        assert any(text.startswith(f"{point.label} {100 * point.accuracy:.1f} %, ") for text in texts)


@settings(max_examples=15)
@given(
    st.lists(
        st.builds(CostPoint, st.just("FedMethod"), st.floats(0.1, 1e4), st.floats(0.0, 1.0)), min_size=1, max_size=6
    )
)
# In a row at the bottom: the first labels shut in what is left.
@example([CostPoint("FedMethod", megabytes, 0.0) for megabytes in (1.0704, 1.0588, 1.1884, 1.0009, 1.0447, 1.1063)])
def test_labels_keep_clear_of_each_other_and_of_all_points(points: list[CostPoint]) -> None:
    with plot_style():
        figure = accuracy_figure(points, "Fuzz")
        figure.draw_without_rendering()
        axes = figure.axes[0]
        centres = axes.transData.transform([(point.megabytes, 100 * point.accuracy) for point in points])
        labels = [text for text in figure.findobj(Annotation) if text.arrow_patch is not None]
        boxes = [super(Annotation, label).get_window_extent().padded(-1.0) for label in labels]
    assert len(boxes) == len(points)
    for index, box in enumerate(boxes):
        assert axes.get_window_extent().containsx(box.x0)
        assert axes.get_window_extent().containsx(box.x1)
        assert box.count_overlaps(boxes[index + 1 :]) == 0
        assert not any(box.contains(x, y) for x, y in centres)


def test_points_are_where_they_belong_on_a_log_axis(style: None) -> None:
    axes = accuracy_figure(_USUAL, "Title").axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in dots] == [
        (point.megabytes, 100 * point.accuracy) for point in _USUAL
    ]
    assert axes.get_xscale() == "log"
    (front,) = [line for line in axes.lines if line.get_marker() != "o"]
    corners = list(zip(front.get_xdata(), front.get_ydata(), strict=True))
    assert corners[:3] == [pytest.approx(corner) for corner in [(1.7, 83.4), (657.0, 83.4), (657.0, 86.2)]]


def test_a_curve_is_a_line_in_its_methods_colour_that_no_label_covers(style: None) -> None:
    figure = accuracy_figure(_USUAL, "Title", [_CURVE[::-1]])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    (line,) = [line for line in axes.lines if len(line.get_xdata()) == len(_CURVE)]
    corners = [(point.megabytes, 100 * point.accuracy) for point in _CURVE]
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == corners
    (dot,) = [one for one in axes.lines if (list(one.get_xdata()), list(one.get_ydata())) == ([1.7], [100 * 0.834])]
    assert line.get_color() == dot.get_color() and line.get_markersize() < dot.get_markersize() / 1.5
    labels = [text for text in figure.findobj(Annotation) if text.arrow_patch is not None]
    assert len(labels) == len(_USUAL)
    drawn = Outline(axes.transData.transform(corners))
    for label in labels:
        assert not drawn.intersects_bbox(super(Annotation, label).get_window_extent(), filled=False), label.get_text()


def test_a_curve_goes_with_a_point_and_the_front_is_of_the_points(tmp_path: Path, style: None) -> None:
    def fronts(*curves: list[CostPoint]) -> list[list[float]]:
        axes = accuracy_figure(_USUAL, "Title", curves).axes[0]
        return [list(line.get_ydata()) for line in axes.lines if line.get_marker() != "o"]

    assert fronts(_CURVE) == fronts()
    with pytest.raises(ValueError, match="method among the points, FedNCM, Fed3R, FedCOF, FedCGS, got FedRank"):
        plot_accuracy_vs_megabytes(_USUAL, tmp_path / "plot.png", "Title", [[CostPoint("FedRank", 1.0, 0.5)]])


def test_coincident_points_are_all_visible(style: None) -> None:
    axes = accuracy_figure([CostPoint(name, 5.0, 0.5) for name in "abc"], "Title").axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    sizes = [line.get_markersize() for line in sorted(dots, key=lambda line: line.get_zorder())]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_another_thread_can_plot_and_the_users_style_stays(tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 37.0, "text.usetex": True, "savefig.dpi": 10}):
        thread = threading.Thread(target=plot_accuracy_vs_megabytes, args=(_USUAL, tmp_path / "plot.png", "Title"))
        thread.start()
        thread.join(timeout=60)
        assert mpl.rcParams["font.size"] == 37.0
    with Image.open(tmp_path / "plot.png") as image:
        assert image.size == (1125, 750)


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one method"):
        plot_accuracy_vs_megabytes([], tmp_path / "plot.png")
    with pytest.raises(ValueError, match="FedNCM: megabytes must be positive and finite, got 0"):
        CostPoint("FedNCM", 0.0, 0.5)
    with pytest.raises(ValueError, match=r"FedNCM: accuracy must be between 0 and 1, got 75\.1"):
        CostPoint("FedNCM", 1.0, 75.1)
    assert not list(tmp_path.iterdir())
