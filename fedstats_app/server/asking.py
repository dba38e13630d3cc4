"""Asking clients for statistics, with lines of progress and, over several rounds, accuracy against bytes."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, MetricRecord

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.data.clients import training_set
from fedstats_app.grid.client_outcome import ClientOutcome
from fedstats_app.grid.kept_statistics import KeptStatistics, LargestStatistics
from fedstats_app.grid.progress import Progress, Step
from fedstats_app.heads import LinearHead
from fedstats_app.report.client_statistics_file import save_client_statistics
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.server.accumulator import Asked
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.server.influence import MAX_GRAMS, MAX_KEPT_BYTES
from fedstats_app.server.machine import expected_seconds
from fedstats_app.server.rank_curve import rank_curve
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import FeatureMap
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import ReceivedStatistics

# A plot of the labels of every client needs a table of clients x classes; above this size none is kept.
MAX_LABEL_CELLS = 5_000_000


def solved_heads(strategy: StatisticsStrategy) -> dict[str, tuple[FeatureMap, LinearHead]]:
    """Return every head with the feature map that it was solved for, by method."""
    methods = strategy.methods()
    return {name: (methods[name].specification.feature_map, head) for name, head in strategy.heads.items()}


def noted(strategy: StatisticsStrategy, num_classes: int, feature_dim: int, *, curve: bool) -> Asked:
    """Return where to note what clients answer; with a curve where FedRoot's other ranks follow from it."""
    kept = KeptStatistics(num_classes, rows_only=True, max_bytes=MAX_KEPT_BYTES)
    found = rank_curve(strategy, feature_dim) if curve else None
    return Asked(kept, LargestStatistics(num_classes, MAX_GRAMS), curve=found)


def seconds_of_pass(config: AppConfig, backbone: Backbone) -> float:
    """Estimate the seconds of a simulation's pass; 0 if features are cached."""
    train = training_set(config.data)
    if FeatureReader(backbone, NodeConfig().cache_root(config.cache)).has_cached(train):
        return 0.0  # timing the network would take longer than reading them
    return expected_seconds(backbone, {0: len(train)}, 1, simulated=True)


def on_reply(
    strategy: StatisticsStrategy,
    asked: Asked,
    folder: RunFolder,
    *,
    class_names: tuple[str, ...],
    total: int,
    keep_labels: bool,
    keep_each: bool,
    keep: Callable[[], None],
    progress: Progress,
    step: Step,
) -> Callable[[ClientOutcome, ReceivedStatistics | None], None]:
    """Return what is done with each client as it is folded.

    Parameters
    ----------
    strategy : StatisticsStrategy
        That folds.
    asked : Asked
        Filled.
    folder : RunFolder
        Gets a line per client, and with ``keep_each`` its statistics.
    class_names : tuple of str
        Of the run.
    total : int
        Clients that are asked.
    keep_labels : bool
        Whether its samples per class are noted.
    keep_each : bool
        Whether each client's statistics are kept in a file of their own.
    keep : callable
        Writes down where the stage stands.
    progress, step
        Of the stage.
    """
    collection, failed = strategy.collection, sum(not one.in_heads for one in strategy.outcomes)
    # Labels per client are what some sites would rather not show: the plot is for simulations only.
    keep_labels = keep_labels and total * len(class_names) <= MAX_LABEL_CELLS

    def note(outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        nonlocal failed
        failed += not outcome.in_heads
        folder.append_client(outcome.to_json())
        if received is not None:
            if asked.curve is not None:
                asked.curve.add(received)
            if collection.capped is None:
                asked.kept.add(outcome.client, received.statistics[:1])
                asked.largest.add(outcome.client, received.statistics[0])
            if keep_labels:
                asked.label_counts[outcome.client] = received.statistics[0].rows.class_counts().numpy()
            if keep_each:
                digest = collection.digests[outcome.client]
                save_client_statistics(folder.path, outcome.client, digest, received.statistics, class_names)
        keep()
        answered = len(strategy.outcomes)
        what = f"{collection.num_examples:,} samples, {collection.total_wire_bytes / 1e6:,.1f} MB up"
        what += f", {failed} failed" if failed else ""
        if answered < total:
            step.at(step.done, f"statistics, {what} so far")
        else:
            progress.say(f"{answered} of {total} clients answered, {what}, {progress.elapsed}")
            step.at(step.done, "solving")

    return note


def evaluate_fn(
    strategy: StatisticsStrategy,
    asked: Asked,
    test_set: ServerTestSet | None,
    *,
    mask_absent: bool,
    progress: Progress,
    step: Step,
) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Return Flower's evaluate_fn: accuracy against bytes after every round, on the server's test set."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        step.at(server_round, "statistics")
        if test_set is None or not strategy.heads or strategy.num_rounds == 1:
            return None
        if any(one["round"] == server_round for one in asked.rounds):  # before the run was interrupted
            return None
        confusion = test_set.evaluate(solved_heads(strategy), mask_absent=mask_absent)
        scores = {name: matrix.accuracy for name, matrix in confusion.items()}
        asked.rounds.append(
            {
                "round": server_round,
                "num_clients": strategy.collection.num_merged,
                "methods": {
                    name: {"accuracy": score, "wire_bytes": strategy.wire_bytes(name)} for name, score in scores.items()
                },
            }
        )
        told = ", ".join(f"{name} {100 * score:.2f}%" for name, score in scores.items())
        progress.say(f"round {server_round} of {strategy.num_rounds}: {told}")
        return MetricRecord({f"{name}-accuracy": score for name, score in scores.items()})

    return evaluate
