"""What clients say of their personal models, as results."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fedstats_app.grid.asking import Answers
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.wire.personal import PersonalMetrics


def personal_result(
    approach: str, answers: Answers[PersonalMetrics], started: float, *, before: bool = False
) -> PersonalResult:
    """Return the result of an approach that asks once.

    Parameters
    ----------
    approach : str
        Its name.
    answers : Answers of PersonalMetrics
        What clients said.
    started : float
        ``time.perf_counter()`` when it began.
    before : bool
        Of the models that clients started from, rather than of their own; those cost no training.
    """
    tested = {client: metrics for client, metrics in answers.of.items() if metrics.num_test}
    return PersonalResult(
        approach,
        {client: metrics.correct_before if before else metrics.correct_after for client, metrics in tested.items()},
        {client: metrics.num_test for client, metrics in tested.items()},
        answers.failures,
        answers.bytes_down,
        answers.bytes_up,
        0 if before else sum(metrics.forward_passes for metrics in answers.of.values()),
        time.perf_counter() - started,
    )


def scored(correct: Mapping[int, int], tested: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """Return both without the clients that have no test samples."""
    clients = [client for client, number in tested.items() if number]
    return {client: correct[client] for client in clients}, {client: tested[client] for client in clients}
