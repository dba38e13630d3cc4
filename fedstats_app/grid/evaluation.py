"""Scoring heads and models on the samples that clients kept for it, by sums over clients; who fails is named."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedstats_app.grid.asking import Answers, ask, to_all, usable
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads import Calibration, ClientScores, ConfusionMatrix, HeadScores, LinearHead
from fedstats_app.heads.calibration import median_temperature
from fedstats_app.heads.leave_one_out import ClientLeftOut, LeaveOneOut
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.heads.targets import TargetLeaveOneOut
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.proportion import DECIDES, capped, deciding
from fedstats_app.training.start import best_temperature
from fedstats_app.wire import RejectedReply, StatisticsRequest
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.evaluation import EVALUATE_HEADS, evaluation_content, read_evaluation_reply
from fedstats_app.wire.reading import LARGEST_WHOLE
from fedstats_app.wire.target_evaluation import read_target_evaluation_reply
from fedstats_app.wire.training import (
    EVALUATE_MODEL,
    TRAINING_LOSSES,
    EvaluationCounts,
    TrainingLosses,
    read_losses_reply,
    read_model_evaluation_reply,
    training_content,
)

# A client is scored on as many samples as are in its statistics.
SHARE_KEPT = 0.5
ScoresOfHead = TypeVar("ScoresOfHead", ClientScores, TargetScores)


@dataclass(frozen=True)
class Scores:
    """Scores of heads on the server's test samples, or on the samples that clients hold out.

    Attributes
    ----------
    evaluated_on : str
        "clients" or "server"; "" before any evaluation.
    heads : mapping
        By method, on the same samples; those of clients without sums for a calibration.
    accuracies : mapping
        By method the accuracy on each client's samples, by client. A client that evaluated nothing, or whose owner lets
        so few samples not be counted, has none; empty where the server evaluated.
    failures : mapping
        From every client that was asked in vain to the reason.
    examples : mapping
        From client to the samples that it evaluated on; empty where the server evaluated.
    right : mapping
        By method, (n,) integers or bool: how many it classifies correctly of each cell of test samples, the same cells
        for all. A cell is one of the server's samples; or a client's of one class, or of all that it does not name.
    calibrations : mapping
        By method, what the same samples say of its temperature: of clients the median of what each chose; None where
        they say nothing.
    num_unreadable : int
        Test samples of the server that could not be read.
    left_out : Scores or None
        Of the ridge on the sites' training samples, each left out of it.
    targets : mapping
        By method, of several labels or numbers a sample, in place of ``heads``.
    """

    evaluated_on: str
    heads: Mapping[str, HeadScores] = field(default_factory=dict)
    accuracies: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    examples: Mapping[int, int] = field(default_factory=dict)
    right: Mapping[str, Tensor] = field(default_factory=dict)
    calibrations: Mapping[str, Calibration | None] = field(default_factory=dict)
    num_unreadable: int = 0
    left_out: Scores | None = None
    targets: Mapping[str, TargetScores] = field(default_factory=dict)

    @property
    def confusion(self) -> dict[str, ConfusionMatrix]:
        """Confusion matrices by method."""
        return {name: scores.confusion for name, scores in self.heads.items()}

    @property
    def num_examples(self) -> int:
        """Samples that the heads were scored on."""
        found = self.targets or self.confusion
        return max((scores.num_examples for scores in found.values()), default=0)

    @property
    def largest(self) -> tuple[int, float]:
        """The client with most of the samples, and its share of them; (-1, 0) where the server evaluated."""
        client = max(self.examples, key=self.examples.__getitem__, default=-1)
        return client, self.examples.get(client, 0) / max(sum(self.examples.values()), 1)

    @property
    def chance(self) -> float:
        """Accuracy of always naming the most frequent class of these samples, of those whose class is known."""
        most = max((int(matrix.class_examples.max()) for matrix in self.confusion.values()), default=0)
        return most / max(self.num_examples, 1)

    def to_json(self) -> dict[str, Any]:
        """Return the entries of results.json about the evaluation."""
        return {
            "evaluated_on": self.evaluated_on,
            "num_test_examples": self.num_examples,
            "num_test_unreadable": self.num_unreadable,
            "evaluation_examples": {str(client): number for client, number in sorted(self.examples.items())},
            "evaluation_failures": {str(client): reason for client, reason in self.failures.items()},
            "leave_one_out": None if self.left_out is None else self.left_out.accuracy_json(),
        }

    def accuracy_json(self) -> dict[str, object]:
        """Return the accuracy of the only head."""
        [(name, matrix)] = self.confusion.items()
        return {"method": name, "num_examples": matrix.num_examples, "accuracy": matrix.accuracy}


def evaluate_on_clients(
    grid: ClientGrid,
    request: StatisticsRequest,
    heads: Mapping[str, LinearHead],
    clients: Mapping[int, int],
    *,
    left_out: LeaveOneOut | TargetLeaveOneOut | None = None,
    max_share: float | None = None,
) -> Scores:
    """Send heads to clients and add up what they count, of one class, several labels or numbers a sample.

    Parameters
    ----------
    request : StatisticsRequest
        That for the statistics, with a holdout above 0 unless ``left_out`` is given.
    heads : mapping
        From a method's name to its head.
    clients : mapping
        Whom to ask, with the number of samples in its statistics: a client that claims to have kept many more for
        evaluation than go with them is left out (:func:`most_held_out`).
    left_out : LeaveOneOut or TargetLeaveOneOut, optional
        Judge the only head, a ridge, on the samples in the statistics, each left out of it.
    max_share : float, optional
        Of one client in the choice of temperatures (:func:`fedstats_app.training.proportion.capped`).
    """
    messages = to_all(evaluation_content(request, heads, left_out), EVALUATE_HEADS, clients)
    share = request.holdout if left_out is None else SHARE_KEPT
    return _added(grid, request, tuple(heads), messages, clients, share, max_share)


def evaluate_without_each(
    grid: ClientGrid,
    request: StatisticsRequest,
    name: str,
    heads: Iterable[tuple[int, LinearHead]],
    clients: Mapping[int, int],
) -> Scores:
    """Send each client a head that was made without it, and add up how it does on the client's training samples.

    ``heads`` are all in memory at once; ``clients`` as in :func:`evaluate_on_clients`.
    """
    messages = (
        message
        for client, head in heads
        for message in to_all(evaluation_content(request, {name: head}, ClientLeftOut()), EVALUATE_HEADS, [client])
    )
    return _added(grid, request, (name,), messages, clients, SHARE_KEPT)


def _added(
    grid: ClientGrid,
    request: StatisticsRequest,
    names: tuple[str, ...],
    messages: Iterable[Message],
    clients: Mapping[int, int],
    share: float,
    max_share: float | None = None,
) -> Scores:
    """Add up the answers to messages, of clients that have about this share of their samples to evaluate on."""
    if request.spec.targets:
        return _added_targets(grid, request, names, messages, clients, share)
    failures: dict[int, str] = {}
    examples: dict[int, int] = {}

    def read(reply: Message) -> dict[str, ClientScores]:
        return read_evaluation_reply(reply, request, names)

    totals = {name: HeadScores.zeros(request.num_classes) for name in names}
    accuracies: dict[str, dict[int, float]] = {name: {} for name in names}
    votes: dict[str, dict[int, int]] = {name: {} for name in names}
    right = {name: [torch.zeros(0, dtype=torch.int64)] for name in names}
    for client, received in _judged(grid, messages, clients, share, read, failures):
        examples[client] = _num_examples(received)
        classes = next(iter(received.values())).confusion.class_examples.nonzero().squeeze(1)
        for name, scores in received.items():
            found, number = scores.confusion, scores.confusion.num_examples
            right[name] += [found.matrix.diagonal()[classes], torch.tensor([found.pooled_correct])]
            totals[name].count_client(scores)
            if number:
                accuracies[name][client] = found.accuracy
            if scores.temperature is not None:
                votes[name][client] = scores.temperature
    cells = {name: torch.cat(of_method) for name, of_method in right.items()}
    calibrations = {}
    for name, some in votes.items():
        weights = capped({client: examples[client] for client in some}, max_share)
        calibrations[name] = median_temperature((vote, weights[client]) for client, vote in some.items())
    return Scores("clients", totals, accuracies, failures, examples, cells, calibrations)


def _added_targets(
    grid: ClientGrid,
    request: StatisticsRequest,
    names: tuple[str, ...],
    messages: Iterable[Message],
    clients: Mapping[int, int],
    share: float,
) -> Scores:
    kind, number = request.spec.targets, request.num_classes

    def read(reply: Message) -> dict[str, TargetScores]:
        return read_target_evaluation_reply(reply, kind, number, names)

    failures: dict[int, str] = {}
    totals, examples = {name: TargetScores.zeros(kind, number) for name in names}, {}
    for client, received in _judged(grid, messages, clients, share, read, failures):
        examples[client] = _num_examples(received)
        for name, scores in received.items():
            totals[name] += scores
    return Scores("clients", failures=failures, examples=examples, targets=totals)


def _judged(
    grid: ClientGrid,
    messages: Iterable[Message],
    clients: Mapping[int, int],
    share: float,
    read: Callable[[Message], dict[str, ScoresOfHead]],
    failures: dict[int, str],
) -> Iterator[tuple[int, dict[str, ScoresOfHead]]]:
    """Send messages and yield each client's scores by method; add to ``failures`` why others have none."""

    def checked(reply: Message) -> dict[str, ScoresOfHead]:
        received = read(reply)
        _check_number(reply, _num_examples(received), clients, share)
        return received

    for client, _, received in usable(grid.send_and_receive(messages), checked, failures):
        yield client, received


def _num_examples(of_heads: Mapping[str, ClientScores] | Mapping[str, TargetScores]) -> int:
    return max((scores.num_examples for scores in of_heads.values()), default=0)


def most_held_out(num_examples: int, holdout: float) -> int:
    """Return how many samples a client can have kept for evaluation, beside those in its statistics.

    Half as many more than the share says, and 20: samples that cannot be read are in neither, classes under a floor
    only in what is kept, and shares are rounded. At a share of 0 there is no bound.
    """
    if holdout == 0.0:
        return LARGEST_WHOLE
    return math.ceil(1.5 * num_examples * holdout / (1.0 - holdout)) + 20


def _check_number(reply: Message, claimed: int, clients: Mapping[int, int], holdout: float) -> None:
    most = most_held_out(clients.get(int(reply.metadata.src_node_id), 0), holdout)
    if claimed > most:
        raise RejectedReply(f"it claims {claimed} samples to evaluate on, its statistics allow {most}")


def evaluate_model_on_clients(
    grid: ClientGrid,
    request: TrainingRequest,
    clients: Mapping[int, int],
    arrays: ArrayRecord,
    fixed: Mapping[str, Tensor],
    server_round: int,
) -> tuple[EvaluationCounts, dict[int, str]]:
    """Score a model that is being trained; see :func:`sum_evaluations`."""
    content = training_content(request, arrays, to_record(fixed), server_round=server_round)
    return sum_evaluations(grid, to_all(content, EVALUATE_MODEL, clients), clients, request.holdout)


def sum_evaluations(
    grid: ClientGrid, messages: Iterable[Message], clients: Mapping[int, int], holdout: float
) -> tuple[EvaluationCounts, dict[int, str]]:
    """Send requests to evaluate, and add up what clients counted; why some are not in it is by client.

    ``clients`` are given with the number of samples in their statistics, from which :func:`most_held_out` follows.
    """

    def read(reply: Message) -> EvaluationCounts:
        counts = read_model_evaluation_reply(reply)
        _check_number(reply, counts.num_examples, clients, holdout)
        return counts

    failures: dict[int, str] = {}
    counted = usable(grid.send_and_receive(messages), read, failures)
    return sum((counts for _, _, counts in counted), EvaluationCounts()), failures


def training_losses(
    grid: ClientGrid,
    request: TrainingRequest,
    head: LinearHead,
    clients: Mapping[int, int],
    min_clients: int = 1,
    max_share: float | None = None,
) -> tuple[list[float], Answers[TrainingLosses]]:
    """Ask clients for a head's loss on their training samples, and average over clients by their samples.

    A client that alone would decide the best temperature is left out
    (:func:`fedstats_app.training.proportion.deciding`).

    Parameters
    ----------
    request : TrainingRequest
        Of a probe.
    head : LinearHead
        (C, D), rounded to float32 for the wire; absent classes get a bias of 0.
    clients : mapping
        From those to ask to their number of samples.
    min_clients : int
        That must answer, or all that are asked, if these are fewer.
    max_share : float, optional
        Of one client in the average (:func:`fedstats_app.training.proportion.capped`).

    Returns
    -------
    losses : list of float
        In nats, at ``TEMPERATURES``.
    answers : Answers

    Raises
    ------
    TooFewClients
        If fewer answer.
    """
    bias = torch.nan_to_num(head.bias.float(), neginf=0.0)
    arrays = to_record({"head.weight": head.weight.float(), "head.bias": bias})

    def read(reply: Message) -> TrainingLosses:
        return read_losses_reply(reply, clients[int(reply.metadata.src_node_id)])

    answers = ask(grid, training_content(request, arrays, ArrayRecord()), TRAINING_LOSSES, clients, read)
    counted = {client: answer.num_examples for client, answer in answers.by_client.items() if answer.num_examples}
    needed = max(1, min(min_clients, len(clients)))
    if len(counted) < needed:
        raise TooFewClients(
            f"{len(counted)} of {len(clients)} sites measured losses by temperature, {needed} are needed "
            f"(min-clients); {answers.reasons()}"
        )
    counted = capped(counted, max_share)

    def mean_losses(sizes: Mapping[int, int]) -> list[float]:
        """Average by samples; sums are exact, so that the order of the clients does not matter."""
        columns = zip(*(answers.by_client[client].losses for client in sizes), strict=True)
        return [math.fsum(map(operator.mul, sizes.values(), column)) / sum(sizes.values()) for column in columns]

    for client in deciding(counted, lambda sizes: best_temperature(mean_losses(sizes))):
        answers.failures[client] = f"without it the others agree on over {DECIDES:g} times more or less"
        del counted[client]
    return mean_losses(counted), answers
