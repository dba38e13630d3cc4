"""Stage 3 of a run: a model for every client, by each approach in turn; an interrupted approach is repeated.

A personal model never leaves its client; the server learns how many test samples each predicts right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import Message, RecordDict
from torch import nn

from fedstats_app.base.progress import Progress
from fedstats_app.grid.asking import ask
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.heads import LinearHead
from fedstats_app.heads.personal import MIXING_GRID
from fedstats_app.methods import PERSONAL_METHODS, Method, method_type
from fedstats_app.report.personal_result import PersonalResult, approach_name
from fedstats_app.report.state import SolvedHead, State
from fedstats_app.report.tables import personal_table
from fedstats_app.server.run import Run
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.collected import CollectedStatistics
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.personal_options import PersonalOptions
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.evaluation import evaluation_content
from fedstats_app.wire.personal import (
    EVALUATE_PERSONAL,
    PERSONAL_HEADS,
    PERSONALISE,
    HeadMetrics,
    Prototypes,
    personal_content,
    personal_heads_content,
    read_head_scores_reply,
    read_personal_heads_reply,
    read_personal_reply,
)

# Key of an entry of results.json that names its approach, which can have several entries.
_APPROACH = "approach"


@dataclass(frozen=True)
class PersonalSession:
    """Results of the first stage, and how personal models are made from them.

    Attributes
    ----------
    clients : mapping
        From those that take part to their number of training samples.
    statistics_request : StatisticsRequest
        The request for the statistics, with the share of their samples that clients keep for testing.
    statistics : CollectedStatistics
        Of all clients, without the samples that they keep for testing.
    methods : mapping
        From name to method.
    training : TrainingRequest
        The part that all trainings share; whether images are flipped is among its options.

    Raises
    ------
    ValueError
        If clients kept no samples for testing, or no method that makes personal heads was solved.
    """

    options: PersonalOptions
    grid: ClientGrid
    clients: Mapping[int, int]
    statistics_request: StatisticsRequest
    heads: Mapping[str, SolvedHead]
    statistics: CollectedStatistics
    methods: Mapping[str, Method[Any]]
    training: TrainingRequest
    backbone: nn.Module
    progress: Progress

    def __post_init__(self) -> None:
        if not self.statistics_request.holdout:
            raise ValueError("personal models are tested on samples that clients keep: holdout must be above 0, got 0")
        if not self.start_methods:
            needed, solved = " or ".join(PERSONAL_METHODS), ", ".join(self.heads)
            raise ValueError(f"personal models need the head of {needed}, got {solved}")

    @property
    def start_methods(self) -> tuple[str, ...]:
        """The methods solved that make personal heads; models start from the first one's head."""
        solved = [name for name in self.heads if method_type(name).name in PERSONAL_METHODS]
        return tuple(sorted(solved, key=lambda name: PERSONAL_METHODS.index(method_type(name).name)))

    def statistics_of(self, method: str) -> FeatureStatistics:
        """Return the federation's statistics that a method's head was solved from."""
        sums: FeatureStatistics = self.methods[method].inputs(self.statistics.total)
        return sums

    @property
    def start(self) -> LinearHead:
        """The head that one-shot personalisation starts from."""
        return self.heads[self.start_methods[0]].head

    @property
    def request(self) -> TrainingRequest:
        """Request to train a whole model, the same in all approaches."""
        return replace(
            self.training, tune="full", options=self.options.local(flip=self.training.options.flip), tune_bias=True
        )


def _asked(
    session: PersonalSession, name: str, content: RecordDict, message_type: str, read: Callable[[Message], Any]
) -> PersonalResult:
    """Ask every client for a model of its own, and return the result under a name."""
    started = time.perf_counter()
    answers = ask(session.grid, content, message_type, session.clients, read)
    tested = {client: metrics for client, metrics in answers.by_client.items() if metrics.num_test}
    return PersonalResult(
        name,
        {client: metrics.num_correct for client, metrics in tested.items()},
        {client: metrics.num_test for client, metrics in tested.items()},
        answers.failures,
        answers.bytes_down,
        answers.bytes_up,
        sum(metrics.forward_passes for metrics in answers.by_client.values()),
        time.perf_counter() - started,
        {client: metrics.mixing for client, metrics in answers.by_client.items() if isinstance(metrics, HeadMetrics)},
    )


def run_approach(session: PersonalSession, approach: str) -> dict[str, PersonalResult]:
    """Run one approach of ``personalise``, on the same clients, splits, options and seeds as all others.

    ``global`` and ``closed-form`` have a result for each method ("global-fedncm").
    """
    results = APPROACHES[approach](session)
    for result in results.values():
        found = f"{100 * result.mean:.2f}% (deviation {100 * result.std:.2f}) over {len(result.num_test)} clients"
        found = f"{found} in {result.seconds:.0f} s" if result.num_test else "no site could be tested"
        failed = f"; {len(result.failures)} failed" if result.failures else ""
        session.progress.say(f"personal, {result.approach}: {found}{failed}")
    return results


def global_heads(session: PersonalSession) -> dict[str, PersonalResult]:
    """Score the federation's heads, one for all, on every client's test samples."""
    started, methods = time.perf_counter(), tuple(session.heads)
    heads = {name: solved.head for name, solved in session.heads.items()}
    content = evaluation_content(session.statistics_request, heads)
    answers = ask(
        session.grid, content, EVALUATE_PERSONAL, session.clients, lambda reply: read_head_scores_reply(reply, methods)
    )
    seconds = time.perf_counter() - started
    results = {}
    for method in methods:
        tested = {client: number for client, (number, _) in answers.by_client.items() if number}
        correct = {client: answers.by_client[client][1][method] for client in tested}
        # Each head alone would cost its share of what all of them cost together.
        down, up = answers.bytes_down // len(methods), answers.bytes_up // len(methods)
        name = f"global-{method}"
        results[name] = PersonalResult(name, correct, tested, answers.failures, down, up, seconds=seconds)
    return results


def local_only(session: PersonalSession) -> dict[str, PersonalResult]:
    """Let every client train alone, from a random head on the pre-trained backbone. Nothing is exchanged."""
    content = personal_content(session.request, {}, None, session.start.present)
    return {"local-only": _asked(session, "local-only", content, PERSONALISE, read_personal_reply)}


def one_shot(session: PersonalSession) -> dict[str, PersonalResult]:
    """Personalise in one shot (FedCGS, Guan et al. 2025): global head and class means down once, then local training.

    The whole model is trained on cross-entropy and a term that holds features near the class means of the federation,
    which stay fixed: the mean square, as the practice that the paper cites has it.
    """
    statistics = session.statistics_of(session.start_methods[0])
    means, present = statistics.class_means.float().cpu(), statistics.present.cpu()
    prototypes = Prototypes(means, present, session.options.alignment_weight)
    head = session.start
    # An absent class has no bias, which travels as 0.
    bias = torch.where(head.present, head.bias, torch.zeros_like(head.bias))
    arrays = {"head.weight": head.weight.float(), "head.bias": bias.float()}
    content = personal_content(session.request, arrays, prototypes, head.present)
    return {"one-shot": _asked(session, "one-shot", content, PERSONALISE, read_personal_reply)}


def closed_form(session: PersonalSession) -> dict[str, PersonalResult]:
    """Solve a head per client from the federation's statistics and its own (:mod:`fedstats_app.heads.personal`)."""
    results = {}
    for method in session.start_methods:
        name, solved = f"closed-form-{method}", session.heads[method]
        content = personal_heads_content(
            replace(session.request, tune="probe"),
            session.statistics_of(method),
            session.methods[method].fixed(solved.head.report.parameters),
            MIXING_GRID,
            wire_dtype="float64" if session.statistics_request.wire_dtype == "float64" else "float32",
        )
        results[name] = _asked(session, name, content, PERSONAL_HEADS, read_personal_heads_reply)
    return results


# From a name of `personalise` to its function.
APPROACHES: dict[str, Callable[[PersonalSession], dict[str, PersonalResult]]] = {
    "global": global_heads,
    "local-only": local_only,
    "one-shot": one_shot,
    "closed-form": closed_form,
}


def personalise(run: Run, state: State) -> State:
    """Run the approaches that the folder lacks, and compare all on what each client kept for testing."""
    options, progress = run.config.personal, run.progress
    if state.statistics is None:
        raise ValueError("personal models need the statistics of the first stage")
    session = PersonalSession(
        options=options,
        grid=run.grid,
        clients=run.trainable(state),
        statistics_request=run.statistics_strategy().request,
        heads=state.heads,
        statistics=state.statistics,
        methods=run.config.configured_methods,
        training=run.training_request(),
        backbone=run.backbone.module,
        progress=progress,
    )
    progress.say(f"personalise {options.personalise} on {len(session.clients)} sites, after {progress.elapsed}")
    kept = [
        (entry[_APPROACH], PersonalResult.from_json(name, entry))
        for name, entry in run.folder.read_results().get("personal", {}).items()
    ]
    finished = {
        approach: {result.approach: result for of_approach, result in kept if of_approach == approach}
        for approach in options.approaches
    }
    left = [approach for approach, made in finished.items() if not made]
    results: dict[str, PersonalResult] = {}
    _announce(session, left)
    with progress.doing("personal models", len(finished)) as step:
        for number, (approach, made) in enumerate(finished.items(), start=1):
            text = f"personal models, {approach} ({number} of {len(finished)})"
            step.at(number - 1, text)
            if made:
                progress.say(f"personal, {approach}: was finished before")
            else:
                made = run_approach(session, approach)
                entries = {name: {_APPROACH: approach, **result.to_json()} for name, result in made.items()}
                run.folder.add_results("personal", entries)
            results |= made
    if run.config.run.plots:
        from fedstats_app.report.plots.later_stages import personal_figure
        from fedstats_app.report.plots.style import save_png

        accuracies = {approach_name(name): list(result.accuracies.values()) for name, result in results.items()}
        title = f"{run.title}, {len(session.clients)} sites"
        if any(accuracies.values()):
            save_png(personal_figure(accuracies, title), run.folder.path / "plots" / "personal.png")
    progress.say(f"the models of each site's own are done after {progress.elapsed}")
    print(personal_table(results.values()), flush=True)
    return state


def _announce(session: PersonalSession, approaches: Sequence[str]) -> None:
    """Print the size of the network that clients will train, and for how many epochs."""
    epochs = {approach: session.options.passes(approach) for approach in approaches if session.options.passes(approach)}
    if not epochs:
        return
    size = sum(part.numel() for part in (*session.backbone.parameters(), session.start.weight, session.start.bias))
    trained = ", ".join(f"{approach} {number}" for approach, number in epochs.items())
    session.progress.say(
        f"{len(session.clients)} sites train the whole network, {size:,} parameters, on "
        f"{sum(session.clients.values()):,} samples in all; epochs: {trained}"
    )
