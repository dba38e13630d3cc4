"""Personal models side by side: every way from a finished first stage to one model per client, tested by the clients.

A personal model never leaves its client, and no approach tells the server more than how many test samples are
predicted right; FedProto's class means and FedAvg's models are what those methods exchange.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import nn

from fedstats_app.config import AppConfig
from fedstats_app.grid.asking import Answers, ask
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads.personal import MIXING_GRID
from fedstats_app.outcomes.personal_result import PersonalResult
from fedstats_app.personal.exchange import personal_result, scored
from fedstats_app.personal.rounds import fedavg_fine_tuned, fedproto
from fedstats_app.personal.stage import PersonalStage
from fedstats_app.strategies.base import StatisticsStrategy
from fedstats_app.wire import evaluation_content
from fedstats_app.wire.personal import PERSONALISE, Prototypes, personal_content, read_personal_reply
from fedstats_app.wire.personal_heads import (
    EVALUATE_PERSONAL,
    PERSONAL_HEADS,
    personal_heads_content,
    read_head_scores_reply,
    read_personal_heads_reply,
)


def run_personal(
    grid: ClientGrid,
    config: AppConfig,
    strategy: StatisticsStrategy,
    backbone: nn.Module,
    *,
    clients: Mapping[int, int] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, PersonalResult]:
    """Run every approach that ``personalise`` names, on the same clients, splits, options and seeds.

    Parameters
    ----------
    grid : ClientGrid
        The one that stage 1 ran on.
    config : AppConfig
        ``personalise`` and the keys after it; ``flip``, ``temperature`` and ``batch_norm`` hold here too.
    strategy : StatisticsStrategy
        Finished; its request had a holdout above 0, so that its statistics are without the test samples.
    backbone : nn.Module
        The pre-trained network, from images to features.
    clients : mapping, optional
        From the clients that can train to their number of training samples; by default all that sent statistics.
    say : callable
        Prints a line.

    Returns
    -------
    dict
        From an approach's name to its result. ``global`` and ``closed-form`` have one for each method
        ("global-fedncm"), and ``fedavg-ft`` has "fedavg" beside it, the shared model before fine-tuning.

    Raises
    ------
    ValueError
        If there was no holdout, or no head with a Gram matrix.
    """
    if clients is None:
        clients = {outcome.client: outcome.num_examples for outcome in strategy.outcomes if outcome.num_examples}
    stage = PersonalStage(grid, config, strategy, backbone, clients, say)
    results: dict[str, PersonalResult] = {}
    for approach in config.personal.approaches:
        try:
            made = APPROACHES[approach](stage)
        except TooFewClients as error:
            made = {approach: PersonalResult(approach, {}, {}, notes=(str(error),))}
        for name, result in made.items():
            results[name] = result
            say(_line(result))
    return results


def _line(result: PersonalResult) -> str:
    failed = f"; {len(result.failures)} failed" if result.failures else ""
    if not result.num_test:
        return f"personal, {result.approach}: no client could be tested{failed}"
    return (
        f"personal, {result.approach}: {100 * result.mean:.2f}% (deviation {100 * result.std:.2f}) over "
        f"{len(result.num_test)} clients in {result.seconds:.0f} s{failed}"
    )


def global_heads(stage: PersonalStage) -> dict[str, PersonalResult]:
    """Score the federation's heads, one for all, on every client's test samples."""
    started, strategy = time.perf_counter(), stage.strategy
    methods = tuple(strategy.heads)
    content = evaluation_content(strategy.request, strategy.indexed_heads)
    answers = ask(
        stage.grid, content, EVALUATE_PERSONAL, stage.clients, lambda reply: read_head_scores_reply(reply, methods)
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


def local_only(stage: PersonalStage) -> dict[str, PersonalResult]:
    """Let every client train alone, from a random head on the pre-trained backbone. Nothing is exchanged."""
    started = time.perf_counter()
    content = personal_content(stage.request(stage.config.personal.personal_epochs), {}, None, stage.predictable)
    answers = ask(stage.grid, content, PERSONALISE, stage.clients, read_personal_reply)
    return {"local-only": personal_result("local-only", answers, started)}


def one_shot(stage: PersonalStage, approach: str, form: str) -> dict[str, PersonalResult]:
    """Personalise in one shot (FedCGS, Guan et al. 2025): global head and class means down once, then local training.

    The whole model is trained on cross-entropy and a term that holds features near the class means of the federation,
    which stay fixed.

    Parameters
    ----------
    stage : PersonalStage
        With the head to start from.
    approach : str
        Name of the result.
    form : str
        "mean-square", as the practice that the paper cites, or "class-mean-sum", its eq. 12 as it was meant.
    """
    started, statistics = time.perf_counter(), stage.statistics()
    prototypes = Prototypes(
        statistics.class_means.float().cpu(), statistics.present.cpu(), form, stage.config.personal.alignment_weight
    )
    content = personal_content(
        stage.request(stage.config.personal.personal_epochs), stage.head_arrays(), prototypes, stage.predictable
    )
    answers = ask(stage.grid, content, PERSONALISE, stage.clients, read_personal_reply)
    return {approach: personal_result(approach, answers, started)}


def closed_form(stage: PersonalStage) -> dict[str, PersonalResult]:
    """Solve a head per client from the federation's statistics and its own (:mod:`fedstats_app.heads.personal`)."""
    results, strategy = {}, stage.strategy
    for method in stage.start_methods:
        started, name = time.perf_counter(), f"closed-form-{method}"
        request = replace(stage.request(1), tune="probe", feature_map=stage.feature_map(method))
        content = personal_heads_content(
            request,
            stage.statistics(method),
            strategy.methods()[method].fixed(strategy.heads[method].report.parameters),
            MIXING_GRID,
            wire_dtype=strategy.request.wire_dtype,
        )
        answers = ask(stage.grid, content, PERSONAL_HEADS, stage.clients, read_personal_heads_reply)
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
APPROACHES: dict[str, Callable[[PersonalStage], dict[str, PersonalResult]]] = {
    "global": global_heads,
    "local-only": local_only,
    "one-shot": lambda stage: one_shot(stage, "one-shot", "mean-square"),
    "one-shot-sum": lambda stage: one_shot(stage, "one-shot-sum", "class-mean-sum"),
    "fedavg-ft": fedavg_fine_tuned,
    "fedproto": fedproto,
    "closed-form": closed_form,
}
