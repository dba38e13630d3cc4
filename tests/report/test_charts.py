"""Charts as geometry: marks where they belong, labels that can be read."""

from itertools import combinations

import pytest

from fedstats_app.report.charts import Chart, Line, Mark, charts

NAMES = ("FedNCM", "Fed3R", "FedCOF", "FedCGS", "FedRoot")
MEGABYTES = (1.91, 40.1, 1.906, 40.1, 3.95)


def chart_of(shares: tuple[float, ...], size: str, lines: tuple[Line, ...] = ()) -> Chart:
    marks = [Mark(*place, 0, name) for name, *place in zip(NAMES, MEGABYTES, shares, strict=True)]
    return charts(marks, lines, x_title="MB", logarithmic=True)[size]


@pytest.mark.parametrize("size", ["wide", "narrow"])
@pytest.mark.parametrize(
    "shares", [(0.75, 0.854, 0.816, 0.8465, 0.852), (0.0,) * 5, (1.0,) * 5, (0.0, 1.0, 0.0, 1.0, 0.5)]
)
def test_labels_lie_inside_and_not_on_each_other(shares: tuple[float, ...], size: str) -> None:
    chart = chart_of(shares, size, (Line([(2.0, shares[4]), (20.0, shares[4])], 4),))
    assert [label.text for label in chart.labels] == list(NAMES)
    # At 12.5 pixels a bold letter is about 8 wide.
    boxes = [(label.x, label.y, 4.0 * len(label.text)) for label in chart.labels]
    for (x, y, half), (other_x, other_y, other_half) in combinations(boxes, 2):
        assert abs(x - other_x) > half + other_half or abs(y - other_y) > 13
    assert all(chart.left < x - half and x + half <= chart.width and 0 < y < chart.bottom for x, y, half in boxes)


def test_more_is_higher_and_further_right_and_ticks_are_round() -> None:
    chart = chart_of((0.75, 0.854, 0.816, 0.8465, 0.852), "wide")
    (ncm, fed3r, cof, *_) = chart.dots
    assert ncm[0] == pytest.approx(cof[0], abs=1.0) and ncm[0] < fed3r[0] and ncm[1] > cof[1] > fed3r[1]
    assert [text for _, text in chart.x_ticks] == ["2", "5", "10", "20", "50"]
    assert all(chart.left <= x <= chart.right for x, _ in chart.x_ticks)
    assert all(0 <= float(text.removesuffix(" %")) <= 100 for _, text in chart.y_ticks)


def test_no_accuracy_below_0_or_above_100_is_on_an_axis() -> None:
    for shares in ((0.0,) * 5, (1.0,) * 5):
        assert {text for _, text in chart_of(shares, "wide").y_ticks} & {"0 %", "100 %"}
        assert all(0 <= float(text.removesuffix(" %")) <= 100 for _, text in chart_of(shares, "wide").y_ticks)


def test_rounds_are_whole_numbers_from_the_first_to_the_last() -> None:
    line = Line([(0.0, 0.1), (1.0, 0.5), (15.0, 0.8)], 1)
    chart = charts([], [line], x_title="round", logarithmic=False)["narrow"]
    assert chart.x_ticks[0][1] == "0" and all(text.isdigit() for _, text in chart.x_ticks)
    corners = [float(corner.split(",")[0]) for corner in chart.lines[0][0].split()]
    assert corners[0] == pytest.approx(chart.left) and corners[-1] == pytest.approx(chart.right)
