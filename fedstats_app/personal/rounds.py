"""Personal models that take rounds: FedProto, and FedAvg with local fine-tuning after it."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace

import torch
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedstats_app.grid.asking import Answers, ask
from fedstats_app.personal.session import PersonalSession, personal_result
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.strategies.fine_tuning import FineTuning, TrainingRound
from fedstats_app.strategies.server_optimizers import EVERYBODY
from fedstats_app.training.model import TunedModel
from fedstats_app.training.start_heads import random_head
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.personal import PERSONALISE, PersonalMetrics, Prototypes, personal_content, read_personal_reply
from fedstats_app.wire.prototypes import PROTOTYPES, LocalPrototypes, prototype_content, read_prototype_reply

# Forward and backward pass through the backbone.
PASSES = 3


def fedproto(session: PersonalSession) -> dict[str, PersonalResult]:
    """Run FedProto (Tan et al., AAAI 2022): models stay with the clients, only class means travel.

    Every client trains its own model, from a random head on the pre-trained backbone, for one epoch a round, its
    features held near the prototypes by their mean squared distance, and sends the means of its classes. The server's
    prototypes are their means over the clients that have the class, each client counting alike, as in the authors'
    code. A client that fails is asked no more.
    """
    started, options = time.perf_counter(), session.options
    active, dim, prototypes = sorted(session.clients), session.start.head.feature_dim, None
    total: Answers[PersonalMetrics] = Answers()
    passes, notes = 0, list[str]()
    with session.progress.doing("round {now} of {total}", options.personal_rounds) as step:
        for server_round in range(1, options.personal_rounds + 1):
            step.at(server_round - 1)
            answers = _fedproto_round(session, prototypes, active, server_round)
            total.of = {client: answer.metrics for client, answer in answers.of.items()}
            total.failures |= {client: f"round {server_round}: {reason}" for client, reason in answers.failures.items()}
            total.add_bytes(answers)
            passes += sum(metrics.forward_passes for metrics in total.of.values())
            lost = [client for client, answer in answers.of.items() if answer.restarted]
            notes += [f"round {server_round}: client {client} had lost its model and started again" for client in lost]
            active = list(answers.of)
            prototypes = mean_prototypes(answers.of, session.predictable.numel(), dim, options.alignment_weight)
    result = personal_result("fedproto", total, started)
    return {"fedproto": replace(result, forward_passes=passes, notes=tuple(notes))}


def _fedproto_round(
    session: PersonalSession, prototypes: Prototypes | None, clients: list[int], server_round: int
) -> Answers[LocalPrototypes]:
    request, dim = session.request(1), session.start.head.feature_dim
    content = prototype_content(
        request,
        prototypes,
        session.predictable,
        server_round=server_round,
        last=server_round == session.options.personal_rounds,
    )
    return ask(
        session.grid, content, PROTOTYPES, clients, lambda reply: read_prototype_reply(reply, request.num_classes, dim)
    )


def mean_prototypes(
    answers: dict[int, LocalPrototypes], num_classes: int, feature_dim: int, weight: float
) -> Prototypes:
    """Return the clients' class means, averaged class by class over the clients that have it."""
    sums = torch.zeros(num_classes, feature_dim, dtype=torch.float64)
    counts = torch.zeros(num_classes, 1, dtype=torch.float64)
    for client in sorted(answers):
        sums[answers[client].class_ids] += answers[client].means.double()
        counts[answers[client].class_ids] += 1
    return Prototypes((sums / counts.clamp(min=1)).float(), counts.squeeze(1) > 0, "mean-square", weight)


def fedavg_fine_tuned(session: PersonalSession) -> dict[str, PersonalResult]:
    """Run FedAvg from a random head, then let every client go on alone with a copy of the model.

    Returns
    -------
    dict
        "fedavg", the shared model on every client's test samples, and "fedavg-ft", the clients' own.
    """
    started, options = time.perf_counter(), session.options
    shared, own = options.personal_rounds, options.personal_epochs
    with session.progress.doing("the shared model", shared + own) as step:
        step.at(0, within=shared)
        arrays, rounds = _fedavg(session)
        step.at(shared, "each client's own", within=own)
        content = personal_content(session.request(own), arrays, None, session.predictable)
        answers = ask(session.grid, content, PERSONALISE, session.clients, read_personal_reply)
    answers.bytes_down += sum(one.bytes_down for one in rounds)
    answers.bytes_up += sum(one.bytes_up for one in rounds)
    passes = PASSES * sum(sum(one.num_examples.values()) for one in rounds)
    dropped = defaultdict(list)
    for one in rounds:
        for client, reason in one.failures.items():
            dropped[client].append(f"client {client} is not in round {one.server_round}: {reason}")
    notes = tuple(reasons[0] + (f" (and {len(reasons) - 1} more)" * (len(reasons) > 1)) for reasons in dropped.values())
    results = {}
    for approach, before in (("fedavg", True), ("fedavg-ft", False)):
        result = personal_result(approach, answers, started, before=before)
        results[approach] = replace(result, forward_passes=result.forward_passes + passes, notes=notes)
    return results


def _fedavg(session: PersonalSession) -> tuple[dict[str, Tensor], list[TrainingRound]]:
    """Return the model after all rounds, by the names of :meth:`TunedModel.trained_state`, and the rounds."""
    request, num_rounds = session.request(1), session.options.personal_rounds
    head = random_head(request.num_classes, session.start.head.feature_dim, request.seed)
    model = TunedModel.of(request, head, session.backbone)
    rounds: list[TrainingRound] = []

    def after_round(one: TrainingRound) -> None:
        rounds.append(one)
        line = f"fedavg: round {one.server_round} of {num_rounds}, training loss {one.train_loss:.3f}"
        session.progress.now_and_then(line)

    inner = FedAvg(**EVERYBODY)  # type: ignore[arg-type]  # floats and ints by name
    strategy = FineTuning(inner, request, session.clients)
    strategy.on_round = after_round
    result = strategy.start(session.grid, to_record(model.trained_state()), num_rounds)
    return to_tensors(result.arrays), rounds
