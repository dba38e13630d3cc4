import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedstats_app.methods import METHODS
from fedstats_app.report.plots.fine_tuning import plot_training, training_figure
from fedstats_app.report.plots.style import METHOD_COLOURS, MUTED, plot_style
from fedstats_app.report.training_record import TrainingResult
from tests.report.plots.conftest import Check
from tests.support.trainings import make_training


def rising(start: str, low: float, high: float, *, seed: int = 0, rounds: int = 30, **changes: Any) -> TrainingResult:
    noise = np.random.default_rng(seed).normal(0, 0.004, rounds + 1)
    scores = [low + (high - low) * (1 - math.exp(-number / 8)) + float(noise[number]) for number in range(rounds + 1)]
    solved = {} if start in ("random", "zero") else {"start_bytes": 1_900_000, "start_forward_passes": 8000}
    return make_training(start, scores, up=1_500_000, down=1_500_000, **{**solved, **changes})


def experiment(seed: int = 0, stage: str = "probe", **changes: Any) -> list[TrainingResult]:
    solved = [rising(name, 0.75 + 0.02 * index, 0.87, seed=seed, stage=stage) for index, name in enumerate(METHODS)]
    return [rising("random", 0.1, 0.84, seed=seed, stage=stage, **changes), *solved]


def draw(results: Sequence[TrainingResult], title: str = "builtin, efficientnet_lite0, 100 clients") -> Figure:
    with plot_style():
        return training_figure(results, title)


def line_of(axes: Axes, colour: str) -> list[Any]:
    return [line for line in axes.lines if line.get_color() == colour and len(line.get_xdata()) > 1]


def stars(axes: Axes) -> list[tuple[float, float]]:
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in axes.lines if line.get_marker() == "*"]


def test_three_panels_show_the_same_accuracies_over_rounds_megabytes_and_passes() -> None:
    training = make_training(
        "fedcof", [0.8, 0.85, 0.9], up=10**6, down=10**6, passes=70, start_bytes=500_000, start_forward_passes=35
    )
    panels = draw([training]).axes
    assert len(panels) == 3
    for axes, costs in zip(panels, ([0, 1, 2], [0.5, 2.5, 4.5], [35, 105, 175]), strict=True):
        (line,) = line_of(axes, METHOD_COLOURS[2])
        assert list(line.get_xdata()) == pytest.approx(costs)
        assert list(line.get_ydata()) == pytest.approx([80, 85, 90])
        assert stars(axes) == [(pytest.approx(costs[0]), pytest.approx(80))]
    assert [axes.get_xscale() for axes in panels] == ["linear", "log", "log"]


def test_only_solved_heads_have_a_star_and_a_random_one_is_dotted_and_grey() -> None:
    panels = draw(experiment()).axes
    for axes in panels:
        assert len(stars(axes)) == len(METHODS)
        (random,) = line_of(axes, MUTED)
        assert random.get_linestyle() != "-"
    unscored_start = draw([make_training("fedcof", [None, 0.8, 0.9])]).axes
    assert all(not stars(axes) for axes in unscored_start)


def test_all_of_the_solved_curves_are_within_the_axes_and_the_random_head_enters_from_below() -> None:
    axes = draw(experiment()).axes[0]
    low, high = axes.get_ylim()
    for line in axes.lines:
        assert line.get_ydata().max() <= high
        if line.get_color() != MUTED:
            assert line.get_ydata().min() >= low
    (random,) = line_of(axes, MUTED)
    assert random.get_ydata().min() < low < random.get_ydata().max()
    alone = draw([rising("random", 0.1, 0.5)]).axes[0]
    assert alone.get_ylim()[0] <= alone.lines[0].get_ydata().min()


def test_a_random_head_that_never_gets_near_is_still_seen() -> None:
    axes = draw([rising("random", 0.1, 0.3), rising("fed3r", 0.85, 0.87)]).axes[0]
    (random,) = line_of(axes, MUTED)
    assert axes.get_ylim()[0] < random.get_ydata().max()


def test_a_panel_of_passes_that_stand_still_is_left_out() -> None:
    for passes, panels in ((0, 2), (10, 3)):
        made, solved = rising("random", 0.1, 0.8, passes=0), rising("fedcof", 0.8, 0.9, passes=passes)
        assert len(draw([made, solved]).axes) == panels
    assert len(draw([rising("random", 0.1, 0.8, passes=0)]).axes) == 2
    assert len(draw([rising("random", 0.1, 0.8, passes=100)]).axes) == 3


def test_beside_a_stage_that_makes_passes_a_probe_on_cached_features_says_why_its_stand_still() -> None:
    stages = [rising("fedcof", 0.8, 0.9, passes=0), rising("fedcof", 0.8, 0.9, stage="full", passes=10)]
    assert [len(axes.texts) for axes in draw(stages).axes] == [0, 0, 1, 0, 0, 0]


def test_seeds_are_one_line_with_a_band_of_one_deviation() -> None:
    seeds = [make_training("fedcof", scores) for scores in ([0.7, 0.8], [0.8, 0.9], [0.9, 1.0])]
    axes = draw(seeds).axes[0]
    (line,) = line_of(axes, METHOD_COLOURS[2])
    assert list(line.get_ydata()) == pytest.approx([80, 90])
    (band,) = axes.collections
    edges = band.get_paths()[0].get_extents()
    assert (edges.ymin, edges.ymax) == (pytest.approx(70), pytest.approx(100))
    assert not draw(seeds[:1]).axes[0].collections


def test_every_stage_has_a_row_of_its_own() -> None:
    figure = draw([*experiment(), *experiment(stage="full", passes=7200)])
    assert len(figure.axes) == 6
    assert [figure.axes[index].get_title(loc="left") for index in (0, 3)] == ["linear probing", "fine-tuning"]


def test_trainings_of_one_start_get_colours_of_their_own() -> None:
    results = [rising("fedcof", 0.8, 0.9, name=name, seed=index) for index, name in enumerate("abcdefgh")]
    assert len({line.get_color() for line in draw(results).axes[0].lines}) == len(METHOD_COLOURS)
    mixed = [rising("fedcof", 0.8, 0.9), rising("fedcof", 0.8, 0.9, name="fedcof, FedAdam"), rising("fed3r", 0.8, 0.9)]
    figure = draw(mixed)
    colours = [line.get_color() for line in figure.axes[0].lines if line.get_marker() != "*"]
    assert len(set(colours)) == 3
    assert (colours[0], colours[2]) == (METHOD_COLOURS[2], METHOD_COLOURS[1])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["FedCOF", "fedcof, FedAdam", "Fed3R"]


@pytest.mark.parametrize(
    "results",
    [
        experiment(),
        [one for seed in range(3) for stage in ("probe", "full") for one in experiment(seed, stage, passes=7200)],
        [*experiment(), *[rising("fedcof", 0.8, 0.9, name=f"fedcof with a long name {index}") for index in range(3)]],
        [make_training("random", [0.1])],
        [make_training("fedcof", [0.8, 0.8], up=10**15, down=10**15, passes=10**14, start_bytes=1)],
        [make_training("zero", [0.5, 0.6], up=0, down=0, passes=0)],
    ],
    ids=["usual", "two stages, seeds", "eight curves", "one point", "extremes", "free"],
)
def test_no_text_lies_over_another_or_is_cut_off(results: list[TrainingResult], check_texts: Check) -> None:
    texts = check_texts(draw(results))
    assert "builtin, efficientnet_lite0, 100 clients" in texts
    assert "round (one aggregation)" in texts


def test_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    for results in ([], [make_training("fedcof", [None, None])]):
        with pytest.raises(ValueError, match="at least one training must have been evaluated"):
            plot_training(results, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
