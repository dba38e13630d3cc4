"""Box plots of clients' accuracies."""

import numpy as np
import pytest

from fedstats_app.report.plots.personal import personal_figure
from tests.report.plots.conftest import Check


def _accuracies(approaches: int, clients: int, low: float = 0.5) -> dict[str, list[float]]:
    random = np.random.default_rng(approaches * 1000 + clients)
    kinds = ("global head, ", "closed form, ", "")
    names = [f"{kinds[index % 3]}approach no. {index}" for index in range(approaches)]
    return {name: random.uniform(low, 1, clients).tolist() for name in names}


@pytest.mark.parametrize(("approaches", "clients"), [(1, 1), (1, 20), (3, 2), (12, 20), (20, 1000)])
@pytest.mark.parametrize("low", [0.0, 0.93])
def test_every_size_is_readable(approaches: int, clients: int, low: float, check_texts: Check) -> None:
    accuracies = _accuracies(approaches, clients, low)
    texts = check_texts(personal_figure(accuracies, "A title of some length: data, backbone, clients"))
    for name, values in accuracies.items():
        assert name in texts
        assert f"{100 * np.mean(values):.1f} ± {100 * np.std(values):.1f}" in texts


def test_long_names_are_cut_in_the_middle(check_texts: Check) -> None:
    texts = check_texts(personal_figure({"an approach with a name that does not end": [0.5, 0.6]}, "Title"))
    assert "an approach wit…t does not end" in texts


def test_dots_and_means_are_the_accuracies(style: None) -> None:
    accuracies = {"one": [0.2, 0.4, 0.9], "none": [], "two": [1.0]}
    axes = personal_figure(accuracies, "Title").axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    means = [line for line in axes.lines if line.get_marker() == "D"]
    assert [np.asarray(line.get_xdata()).tolist() for line in dots] == [[20.0, 40.0, 90.0], [100.0]]
    assert [float(np.asarray(line.get_xdata()).item()) for line in means] == [pytest.approx(50.0), 100.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
    low, high = axes.get_xlim()
    assert low < 20.0 and high > 100.0


def test_approaches_of_one_kind_have_one_colour(style: None) -> None:
    accuracies = {"global head, a": [0.1], "global head, b": [0.2], "FedProto": [0.3]}
    axes = personal_figure(accuracies, "Title").axes[0]
    colours = [line.get_color() for line in axes.lines if line.get_marker() == "o"]
    assert colours[0] == colours[1] != colours[2]


@pytest.mark.parametrize("accuracies", [{}, {"one": []}])
def test_nothing_to_draw_is_an_error(accuracies: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="at least one approach"):
        personal_figure(accuracies, "Title")


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_what_is_no_accuracy_is_an_error(value: float) -> None:
    with pytest.raises(ValueError, match="one: accuracies must be between 0 and 1"):
        personal_figure({"one": [0.5, value]}, "Title")
