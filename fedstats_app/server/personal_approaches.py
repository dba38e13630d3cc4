"""Personal models side by side: every way from a finished first stage to one model per client, tested by the clients.

A personal model never leaves its client, and no approach tells the server more than how many test samples are
predicted right; FedProto's class means and FedAvg's models are what those methods exchange.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedstats_app.grid.asking import Answers, ask
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads.personal import MIXING_GRID
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.server.personal_session import PersonalSession, personal_result
from fedstats_app.strategies.fine_tuning import FineTuning, TrainingRound
from fedstats_app.strategies.server_optimizers import EVERYBODY
from fedstats_app.training.model import TunedModel
from fedstats_app.training.start import random_head
from fedstats_app.wire.arrays import to_record, to_tensors
from fedstats_app.wire.evaluation import evaluation_content
from fedstats_app.wire.personal import (
    EVALUATE_PERSONAL,
    PERSONAL_HEADS,
    PERSONALISE,
    PROTOTYPES,
    LocalPrototypes,
    PersonalMetrics,
    Prototypes,
    personal_content,
    personal_heads_content,
    prototype_content,
    read_head_scores_reply,
    read_personal_heads_reply,
    read_personal_reply,
    read_prototype_reply,
)

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
            lost = [client for client, answer in answers.of.items() if answer.metrics.restarted]
            notes += [f"round {server_round}: client {client} had lost its model and started again" for client in lost]
            active = list(answers.of)
            prototypes = mean_prototypes(answers.of, session.predictable.numel(), dim, options.alignment_weight)
    result = personal_result("fedproto", total, started)
    return {"fedproto": replace(result, forward_passes=passes, notes=tuple(notes))}


def _fedproto_round(
    session: PersonalSession, prototypes: Prototypes | None, clients: list[int], server_round: int
) -> Answers[LocalPrototypes]:
    request, last = session.request(1), server_round == session.options.personal_rounds
    content = prototype_content(request, prototypes, session.predictable, server_round=server_round, last=last)
    classes, dim = request.num_classes, session.start.head.feature_dim
    return ask(session.grid, content, PROTOTYPES, clients, lambda reply: read_prototype_reply(reply, classes, dim))


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
    """Run FedAvg from a random head, "fedavg", then let every client train a copy alone, "fedavg-ft"."""
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


def run_approach(session: PersonalSession, approach: str) -> dict[str, PersonalResult]:
    """Run one approach that ``personalise`` can name, on the same clients, splits, options and seeds as all others.

    ``global`` and ``closed-form`` have a result for each method ("global-fedncm"), and ``fedavg-ft`` has "fedavg"
    beside it, the shared model before fine-tuning.
    """
    try:
        results = APPROACHES[approach](session)
    except TooFewClients as error:
        results = {approach: PersonalResult(approach, {}, {}, notes=(str(error),))}
    for result in results.values():
        session.progress.say(_line(result))
    return results


def _line(result: PersonalResult) -> str:
    failed = f"; {len(result.failures)} failed" if result.failures else ""
    if not result.num_test:
        return f"personal, {result.approach}: no client could be tested{failed}"
    return (
        f"personal, {result.approach}: {100 * result.mean:.2f}% (deviation {100 * result.std:.2f}) over "
        f"{len(result.num_test)} clients in {result.seconds:.0f} s{failed}"
    )


def global_heads(session: PersonalSession) -> dict[str, PersonalResult]:
    """Score the federation's heads, one for all, on every client's test samples."""
    started, methods = time.perf_counter(), tuple(session.heads)
    heads = {name: (session.spec_index(one), one.head) for name, one in session.heads.items()}
    content = evaluation_content(session.asked, heads)
    answers = ask(
        session.grid, content, EVALUATE_PERSONAL, session.clients, lambda reply: read_head_scores_reply(reply, methods)
    )
    seconds = time.perf_counter() - started
    results = {}
    for method in methods:
        tested = {client: number for client, (number, _) in answers.of.items() if number}
        correct = {client: answers.of[client][1][method] for client in tested}
        # Each head alone would cost its share of what all of them cost together.
        down, up = answers.bytes_down // len(methods), answers.bytes_up // len(methods)
        name = f"global-{method}"
        results[name] = PersonalResult(name, correct, tested, answers.failures, down, up, seconds=seconds)
    return results


def local_only(session: PersonalSession) -> dict[str, PersonalResult]:
    """Let every client train alone, from a random head on the pre-trained backbone. Nothing is exchanged."""
    return _trained_alone(session, "local-only", {}, None)


def one_shot(session: PersonalSession, approach: str, form: str) -> dict[str, PersonalResult]:
    """Personalise in one shot (FedCGS, Guan et al. 2025): global head and class means down once, then local training.

    The whole model is trained on cross-entropy and a term that holds features near the class means of the federation,
    which stay fixed. Its form is "mean-square", as the practice that the paper cites, or "class-mean-sum", its eq. 12
    as it was meant.
    """
    statistics = session.statistics_of(session.start_methods[0])
    means, present = statistics.class_means.float().cpu(), statistics.present.cpu()
    prototypes = Prototypes(means, present, form, session.options.alignment_weight)
    return _trained_alone(session, approach, session.head_arrays(), prototypes)


def _trained_alone(
    session: PersonalSession, approach: str, arrays: Mapping[str, Tensor], prototypes: Prototypes | None
) -> dict[str, PersonalResult]:
    started, request = time.perf_counter(), session.request(session.options.personal_epochs)
    content = personal_content(request, arrays, prototypes, session.predictable)
    answers = ask(session.grid, content, PERSONALISE, session.clients, read_personal_reply)
    return {approach: personal_result(approach, answers, started)}


def closed_form(session: PersonalSession) -> dict[str, PersonalResult]:
    """Solve a head per client from the federation's statistics and its own (:mod:`fedstats_app.heads.personal`)."""
    results = {}
    for method in session.start_methods:
        started, name, solved = time.perf_counter(), f"closed-form-{method}", session.heads[method]
        content = personal_heads_content(
            replace(session.request(1), tune="probe", feature_map=solved.feature_map),
            session.statistics_of(method),
            session.methods[method].fixed(solved.head.report.parameters),
            MIXING_GRID,
            wire_dtype="float64" if session.asked.wire_dtype == "float64" else "float32",
        )
        answers = ask(session.grid, content, PERSONAL_HEADS, session.clients, read_personal_heads_reply)
        mixing = {client: metrics.mixing for client, metrics in answers.of.items()}
        results[name] = replace(personal_result(name, answers, started), mixing=mixing)
    return results


# From a name of `personalise` to what runs it.
APPROACHES: dict[str, Callable[[PersonalSession], dict[str, PersonalResult]]] = {
    "global": global_heads,
    "local-only": local_only,
    "one-shot": lambda session: one_shot(session, "one-shot", "mean-square"),
    "one-shot-sum": lambda session: one_shot(session, "one-shot-sum", "class-mean-sum"),
    "fedavg-ft": fedavg_fine_tuned,
    "fedproto": fedproto,
    "closed-form": closed_form,
}
