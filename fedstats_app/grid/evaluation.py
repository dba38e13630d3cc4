"""Scoring heads and models on the samples that clients kept for it, by sums over clients; who fails is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedstats_app.grid.asking import to_all, usable
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.heads import CalibrationSums, ConfusionMatrix, LinearHead
from fedstats_app.training.request import TrainingRequest
from fedstats_app.wire import EVALUATE_HEADS, StatisticsRequest, evaluation_content, read_evaluation_reply
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.training import EVALUATE_MODEL, EvaluationCounts, read_model_evaluation_reply, training_content


def evaluate_on_clients(
    grid: ClientGrid,
    request: StatisticsRequest,
    heads: Mapping[str, tuple[int, LinearHead]],
    clients: Iterable[int],
) -> tuple[dict[str, ConfusionMatrix], dict[str, CalibrationSums], dict[int, str]]:
    """Send heads to clients and add up what they count.

    Parameters
    ----------
    grid : ClientGrid
        The one that the heads' statistics were asked for on.
    request : StatisticsRequest
        That for the statistics, with a holdout above 0.
    heads : mapping
        From a method's name to the index of its specification in the request, and its head.
    clients : iterable of int
        Whom to ask.

    Returns
    -------
    confusion : dict
        From method to confusion matrix.
    calibration : dict
        From method to the sums from which its temperature is chosen.
    failures : dict
        From client to the reason why it is not in there.
    """
    confusion = {name: ConfusionMatrix.zeros(request.num_classes) for name in heads}
    calibration = {name: CalibrationSums.zeros() for name in heads}
    failures: dict[int, str] = {}
    replies = grid.send_and_receive(to_all(evaluation_content(request, heads), EVALUATE_HEADS, clients))
    for _, _, received in usable(replies, lambda reply: read_evaluation_reply(reply, request, tuple(heads)), failures):
        for name, (counts, sums) in received.items():
            confusion[name] += counts
            calibration[name] += sums
    return confusion, calibration, failures


def evaluate_model_on_clients(
    grid: ClientGrid,
    request: TrainingRequest,
    clients: Iterable[int],
    arrays: ArrayRecord,
    fixed: Mapping[str, Tensor],
    server_round: int,
) -> tuple[EvaluationCounts, dict[int, str]]:
    """Score a model that is being trained; see :func:`sum_evaluations`."""
    content = training_content(request, arrays, to_record(fixed), server_round=server_round)
    return sum_evaluations(grid, to_all(content, EVALUATE_MODEL, clients))


def sum_evaluations(grid: ClientGrid, messages: Iterable[Message]) -> tuple[EvaluationCounts, dict[int, str]]:
    """Send requests to evaluate.

    Returns
    -------
    counts : EvaluationCounts
        Of all clients that answered.
    failures : dict
        From client to the reason why it is not in there.
    """
    failures: dict[int, str] = {}
    counted = usable(grid.send_and_receive(messages), read_model_evaluation_reply, failures)
    return sum((counts for _, _, counts in counted), EvaluationCounts()), failures
