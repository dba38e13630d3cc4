"""What clients say of their personal models, as results."""

from __future__ import annotations

from fedstats_app.grid.asking import Answers
from fedstats_app.personal.session import personal_result
from fedstats_app.wire.personal import PersonalMetrics


def test_clients_without_test_samples_have_no_accuracy_but_cost() -> None:
    metrics = {0: PersonalMetrics(10, 4, 1, 3, 30), 1: PersonalMetrics(20, 0, 0, 0, 60)}
    answers = Answers(metrics, {2: "no disk"}, 5, 6)
    result = personal_result("x", answers, 0.0)
    assert (result.num_correct, result.num_test, result.forward_passes) == ({0: 3}, {0: 4}, 90)
    assert (result.bytes_down, result.bytes_up, result.failures) == (5, 6, {2: "no disk"})
    before = personal_result("x", answers, 0.0, before=True)
    assert (before.num_correct, before.forward_passes) == ({0: 1}, 0)
