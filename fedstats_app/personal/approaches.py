"""Personal models side by side: every way from a finished first stage to one model per client, tested by the clients.

A personal model never leaves its client, and no approach tells the server more than how many test samples are
predicted right; FedProto's class means and FedAvg's models are what those methods exchange.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from fedstats_app.grid.asking import Answers, ask
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads.personal import MIXING_GRID
from fedstats_app.personal.rounds import fedavg_fine_tuned, fedproto
from fedstats_app.personal.session import PersonalSession, personal_result, scored
from fedstats_app.report.personal_result import PersonalResult
from fedstats_app.wire import evaluation_content
from fedstats_app.wire.personal import PERSONALISE, Prototypes, personal_content, read_personal_reply
from fedstats_app.wire.personal_heads import (
    EVALUATE_PERSONAL,
    PERSONAL_HEADS,
    personal_heads_content,
    read_head_scores_reply,
    read_personal_heads_reply,
)


def run_approach(session: PersonalSession, approach: str) -> dict[str, PersonalResult]:
    """Run one approach that ``personalise`` can name, on the same clients, splits, options and seeds as all others.

    Returns
    -------
    dict
        From a name to its result. ``global`` and ``closed-form`` have one for each method ("global-fedncm"), and
        ``fedavg-ft`` has "fedavg" beside it, the shared model before fine-tuning.
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
        correct = {client: scores[method] for client, (_, scores) in answers.of.items()}
        tested = {client: number for client, (number, _) in answers.of.items()}
        # Each head alone would cost its share of what all of them cost together.
        down, up = answers.bytes_down // len(methods), answers.bytes_up // len(methods)
        name = f"global-{method}"
        results[name] = PersonalResult(name, *scored(correct, tested), answers.failures, down, up, seconds=seconds)
    return results


def local_only(session: PersonalSession) -> dict[str, PersonalResult]:
    """Let every client train alone, from a random head on the pre-trained backbone. Nothing is exchanged."""
    return _trained_alone(session, "local-only", {}, None)


def one_shot(session: PersonalSession, approach: str, form: str) -> dict[str, PersonalResult]:
    """Personalise in one shot (FedCGS, Guan et al. 2025): global head and class means down once, then local training.

    The whole model is trained on cross-entropy and a term that holds features near the class means of the federation,
    which stay fixed.

    Parameters
    ----------
    session : PersonalSession
        With the head to start from.
    approach : str
        Name of the result.
    form : str
        "mean-square", as the practice that the paper cites, or "class-mean-sum", its eq. 12 as it was meant.
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
        metrics = Answers(
            {client: metrics for client, (metrics, _) in answers.of.items()},
            answers.failures,
            answers.bytes_down,
            answers.bytes_up,
        )
        mixing = {client: weight for client, (_, weight) in answers.of.items()}
        results[name] = replace(personal_result(name, metrics, started), mixing=mixing)
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
