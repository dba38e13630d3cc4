"""The federation's statistics down, numbers of right answers up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from flwr.app import Message, RecordDict

from fedstats_app.methods import METHODS, PERSONAL_METHODS
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire import RejectedRequest
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
from tests.support.compare import relative_difference, same_bits
from tests.support.local_grid import instruction
from tests.support.options import configured
from tests.wire.replies import DIM, NUM_CLASSES, features_and_labels

STATISTICS = FeatureStatistics.from_features(*features_and_labels(), NUM_CLASSES)
REQUEST = TrainingRequest(NUM_CLASSES, "probe", holdout=0.25, seed=3)
FIXED = {"ridge_lambda": 12.5, "shrinkage": 0.25}
FED3R = METHODS["fed3r"].configured().fixed(FIXED)
GRID = (0.0, 0.25, 1.0)
METRICS = PersonalMetrics(100, 25, 10, 20, 100, 1.5)


def content(wire_dtype: str = "float64") -> RecordDict:
    return personal_heads_content(REQUEST, STATISTICS, FED3R, GRID, wire_dtype=wire_dtype)


def question() -> Message:
    return instruction(content(), PERSONAL_HEADS)


@pytest.mark.parametrize("name", PERSONAL_METHODS)
def test_any_options_arrive_as_they_are(name: str) -> None:
    for method in configured(name):
        fixed = replace(method.fixed(FIXED), seed=0)
        asked = personal_heads_content(REQUEST, STATISTICS, fixed, GRID, wire_dtype="float64")
        task = read_personal_heads_task(instruction(asked, PERSONAL_HEADS))
        assert (task.training.request, task.method, task.grid) == (REQUEST, fixed, GRID)


def test_statistics_arrive_bit_for_bit() -> None:
    task = read_personal_heads_task(question())
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
        personal_heads_content(REQUEST, without, FED3R, GRID, wire_dtype="float32")


def test_options_that_exclude_each_other_are_refused() -> None:
    asked = content()
    asked["solver"].update({"fed3r-between-class": False, "fed3r-fit-bias": True})  # type: ignore[call-arg,arg-type]
    with pytest.raises(RejectedRequest, match="fed3r-fit-bias: true needs"):
        read_personal_heads_task(instruction(asked, PERSONAL_HEADS))


def test_replies_survive_the_journey() -> None:
    assert read_personal_heads_reply(personal_heads_reply(question(), METRICS, 0.3)) == (METRICS, 0.3)
    scores = {"fed3r": 3, "fedcgs": 0}
    assert read_head_scores_reply(head_scores_reply(question(), 7, scores), ("fed3r", "fedcgs")) == (7, scores)
