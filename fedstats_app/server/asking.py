"""Asking clients for statistics, with lines of progress and, over several rounds, accuracy against bytes."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import ArrayRecord, MetricRecord

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.data.clients import training_set
from fedstats_app.grid.client_outcome import ClientOutcome
from fedstats_app.grid.kept_statistics import KeptStatistics, LargestStatistics
from fedstats_app.grid.progress import Step
from fedstats_app.heads import LinearHead
from fedstats_app.report.client_statistics_file import save_client_statistics
from fedstats_app.server.accumulator import Accumulator, Asked
from fedstats_app.server.influence import MAX_GRAMS, MAX_KEPT_BYTES
from fedstats_app.server.machine import expected_seconds
from fedstats_app.server.rank_curve import rank_curve
from fedstats_app.server.run import Run
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import FeatureMap
from fedstats_app.statistics.share_caps import ShareCaps
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import Limits, ReceivedStatistics

# A plot of the labels of every client needs a table of clients x classes; above this size none is kept.
MAX_LABEL_CELLS = 5_000_000


def statistics_strategy(run: Run) -> StatisticsStrategy:
    """Return the strategy that serves all methods of the run."""
    config = run.config
    return StatisticsStrategy(
        len(run.class_names),
        tuple(config.configured_methods.values()),
        feature_dim=run.backbone.feature_dim,
        min_clients=min(config.federation.min_clients, len(run.federation.hosts)),
        fraction_train=config.federation.fraction_train,
        seed=config.run.seed,
        wire_dtype=config.federation.wire_dtype,
        backbone_fingerprint=run.backbone.fingerprint,
        class_names=run.sent_names,
        holdout=run.holdout,
        limits=Limits(run.feature_norm.bound, config.federation.max_client_samples),
        caps=ShareCaps(config.federation.max_class_share, config.federation.max_client_share),
    )


def solved_heads(strategy: StatisticsStrategy) -> dict[str, tuple[FeatureMap, LinearHead]]:
    """Return every head with the feature map that it was solved for, by method."""
    methods = strategy.methods()
    return {name: (methods[name].specification.feature_map, head) for name, head in strategy.heads.items()}


def ask(run: Run, strategy: StatisticsStrategy) -> Asked:
    """Ask every client that an interrupted run has not asked before, add what an earlier run has, and solve."""
    kept = KeptStatistics(len(run.class_names), rows_only=True, max_bytes=MAX_KEPT_BYTES)
    has_curve = run.test_set is not None and not run.config.federation.extend
    curve = rank_curve(strategy, run.backbone.feature_dim) if has_curve else None
    asked = Asked(kept, LargestStatistics(len(run.class_names), MAX_GRAMS), curve=curve)
    run.extension.apply(strategy, run.class_names)
    run.folder.forget_clients()
    if run.config.run.save_client_statistics:
        run.extension.take_over_clients(run.folder.path, run.progress.say)
    accumulator = Accumulator(run.folder.path, strategy, asked, run.config.run)
    clients = run.federation.hosts
    if run.config.run.resume and accumulator.take_up(clients):
        for outcome in strategy.outcomes:
            run.folder.append_client(outcome.to_json())
        run.progress.say(f"going on after {len(strategy.outcomes)} of {len(clients)} clients")
    run.progress.say(f"asking {len(clients.keys() - strategy.answered)} clients for the statistics of their features")
    run.grid.reply_bytes = strategy.expected_reply_bytes
    expected = _expected(run.config, run.backbone) if run.federation.simulated else 0.0
    with run.progress.doing("statistics", strategy.num_rounds, expected=expected) as step:
        strategy.on_reply = _on_reply(run, strategy, asked, accumulator, step)
        strategy.start(run.grid, evaluate_fn=_evaluate_fn(run, strategy, asked, step))
    return asked


def _expected(config: AppConfig, backbone: Backbone) -> float:
    """Estimate the seconds of a simulation's pass; 0 if features are cached."""
    train = training_set(config.data)
    if FeatureReader(backbone, NodeConfig().cache_root(config.cache)).has_cached(train):
        return 0.0  # timing the network would take longer than reading them
    return expected_seconds(backbone, {0: len(train)}, 1, simulated=True)


def _on_reply(
    run: Run, strategy: StatisticsStrategy, asked: Asked, accumulator: Accumulator, step: Step
) -> Callable[[ClientOutcome, ReceivedStatistics | None], None]:
    total, collection = len(run.federation.hosts), strategy.collection
    failed = sum(not one.in_heads for one in strategy.outcomes)
    # Labels per client are what some sites would rather not show: the plot is for simulations only.
    keep_labels = run.federation.simulated and total * len(run.class_names) <= MAX_LABEL_CELLS

    def on_reply(outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
        nonlocal failed
        failed += not outcome.in_heads
        run.folder.append_client(outcome.to_json())
        if received is not None:
            if asked.curve is not None:
                asked.curve.add(received)
            if collection.capped is None:
                asked.kept.add(outcome.client, received.statistics[:1])
                asked.largest.add(outcome.client, received.statistics[0])
            if keep_labels:
                asked.label_counts[outcome.client] = received.statistics[0].rows.class_counts().numpy()
            if run.config.run.save_client_statistics:
                digest = collection.digests[outcome.client]
                save_client_statistics(run.folder.path, outcome.client, digest, received.statistics, run.class_names)
        accumulator.keep()
        answered = len(strategy.outcomes)
        what = f"{collection.num_examples:,} samples, {collection.total_wire_bytes / 1e6:,.1f} MB up"
        what += f", {failed} failed" if failed else ""
        if answered < total:
            step.at(step.done, f"statistics, {what} so far")
        else:
            run.progress.say(f"{answered} of {total} clients answered, {what}, {run.progress.elapsed}")
            step.at(step.done, "solving")

    return on_reply


def _evaluate_fn(
    run: Run, strategy: StatisticsStrategy, asked: Asked, step: Step
) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Return Flower's evaluate_fn: accuracy against bytes after every round, on the server's test set."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        step.at(server_round, "statistics")
        if run.test_set is None or not strategy.heads or strategy.num_rounds == 1:
            return None
        if any(one["round"] == server_round for one in asked.rounds):  # before the run was interrupted
            return None
        confusion = run.test_set.evaluate(solved_heads(strategy), mask_absent=run.config.run.mask_absent)
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
        run.progress.say(f"round {server_round} of {strategy.num_rounds}: {told}")
        return MetricRecord({f"{name}-accuracy": score for name, score in scores.items()})

    return evaluate
