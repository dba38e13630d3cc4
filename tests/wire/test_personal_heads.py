"""The federation's statistics down, numbers of right answers up."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Message, RecordDict

from fedstats_app.heads.personal import PersonalSolver
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.wire.personal import PersonalMetrics
from fedstats_app.wire.personal_heads import (
    PERSONAL_HEADS,
    head_scores_reply,
    personal_heads_content,
    personal_heads_reply,
    read_head_scores_reply,
    read_personal_heads_reply,
    read_personal_heads_task,
)
from fedstats_app.wire.training import TrainingRequest
from tests.support.compare import relative_difference, same_bits
from tests.support.local_grid import instruction
from tests.wire.replies import DIM, NUM_CLASSES, features_and_labels

STATISTICS = FeatureStatistics.from_features(*features_and_labels(), NUM_CLASSES)
REQUEST = TrainingRequest(NUM_CLASSES, "probe", holdout=0.25, seed=3)
SOLVER = PersonalSolver("ridge", ridge_lambda=12.5, fit_bias=True)
GRID = (0.0, 0.25, 1.0)
METRICS = PersonalMetrics(100, 25, 10, 20, 100, 1.5)


def content(wire_dtype: str = "float64") -> RecordDict:
    return personal_heads_content(REQUEST, STATISTICS, SOLVER, GRID, wire_dtype=wire_dtype)


def question() -> Message:
    return instruction(content(), PERSONAL_HEADS)


@pytest.mark.parametrize("solver", [SOLVER, PersonalSolver("gaussian", covariance="within", shrinkage=0.25)])
def test_statistics_arrive_bit_for_bit(solver: PersonalSolver) -> None:
    asked = personal_heads_content(REQUEST, STATISTICS, solver, GRID, wire_dtype="float64")
    task = read_personal_heads_task(instruction(asked, PERSONAL_HEADS))
    assert (task.training.request, task.solver, task.grid) == (REQUEST, solver, GRID)
    assert task.statistics.gram is not None and STATISTICS.gram is not None
    for name in ("class_counts", "class_sums", "gram"):
        assert same_bits(getattr(task.statistics, name), getattr(STATISTICS, name))


def test_float32_halves_what_travels() -> None:
    task = read_personal_heads_task(instruction(content("float32"), PERSONAL_HEADS))
    assert task.statistics.class_sums.dtype == torch.float64
    assert 0 < relative_difference(task.statistics.class_sums, STATISTICS.class_sums) < 1e-7
    sizes = [len(content(dtype)["statistics"]["gram"].data) - 128 for dtype in ("float32", "float64")]
    assert sizes == [4 * DIM * (DIM + 1) // 2, 8 * DIM * (DIM + 1) // 2]


def test_statistics_without_a_gram_matrix_are_not_sent() -> None:
    without = FeatureStatistics.from_features(*features_and_labels(), NUM_CLASSES, gram=False)
    with pytest.raises(ValueError, match="Gram matrix"):
        personal_heads_content(REQUEST, without, SOLVER, GRID, wire_dtype="float32")


def test_replies_survive_the_journey() -> None:
    assert read_personal_heads_reply(personal_heads_reply(question(), METRICS, 0.3)) == (METRICS, 0.3)
    scores = {"fed3r": 3, "fedcgs": 0}
    assert read_head_scores_reply(head_scores_reply(question(), 7, scores), ("fed3r", "fedcgs")) == (7, scores)
