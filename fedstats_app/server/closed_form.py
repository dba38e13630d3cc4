"""Stage 1 of a run, on the server: ask for statistics, solve, evaluate, write down."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.config import AppConfig
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import Federation
from fedstats_app.grid.evaluation import evaluate_on_clients
from fedstats_app.heads import CalibrationSums, ConfusionMatrix, LinearHead
from fedstats_app.outcomes.client_outcome import ClientOutcome
from fedstats_app.outcomes.method_result import MethodResult
from fedstats_app.results import RunFolder, results_table, write_model_card
from fedstats_app.results.disclosure import policy_record
from fedstats_app.results.record import head_metadata, method_result, versions
from fedstats_app.results.statistics_file import save_statistics
from fedstats_app.server.console import quiet_flower, say
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.server.extension import Extension
from fedstats_app.statistics import FeatureMap
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire import ReceivedStatistics

# A plot of the labels of every client needs a table of clients x classes; above this size none is kept.
MAX_LABEL_CELLS = 5_000_000
SECONDS_BETWEEN_LINES = 5.0


@dataclass
class ClosedForm:
    """The closed-form heads of a run.

    Attributes
    ----------
    config, folder, backbone, class_names, data_name
        Of the run.
    federation : Federation
        The clients.
    extension : Extension
        What an earlier run has to add.
    test_set : ServerTestSet or None
        None where heads are evaluated on what clients hold out.
    align_names : bool
        Whether clients need the class names to align their labels.
    started : float
        When the run began, by ``time.perf_counter``.
    """

    config: AppConfig
    folder: RunFolder
    backbone: Backbone
    class_names: tuple[str, ...]
    data_name: str
    federation: Federation
    extension: Extension
    test_set: ServerTestSet | None
    align_names: bool
    started: float
    last_line: float = 0.0
    evaluation_failures: dict[int, str] = field(default_factory=dict)
    calibration: dict[str, CalibrationSums] = field(default_factory=dict)
    num_test_unreadable: int = 0
    label_counts: dict[int, np.ndarray] = field(default_factory=dict)
    rounds: list[dict[str, object]] = field(default_factory=list)

    def run(self, grid: ClientGrid, strategy: StatisticsStrategy) -> None:
        """Ask the clients, solve, evaluate and fill the run folder."""
        self.folder.forget_clients()
        say(f"asking {len(self.federation.hosts)} clients for the statistics of their features")
        with quiet_flower():
            strategy.start(grid, evaluate_fn=self._evaluate_fn(strategy))
        if self.config.run.save_statistics:
            save_statistics(self.folder.path, strategy.collection.collected(self.class_names, self.folder.run_id))
        self._write(strategy, self._evaluate(grid, strategy))

    def elapsed(self) -> str:
        """Return the seconds since the run began, in words."""
        return f"{time.perf_counter() - self.started:.0f} s"

    def make_strategy(self) -> StatisticsStrategy:
        """Return the strategy that serves all methods of the run, with what an earlier run has to add."""
        config, federation, class_names = self.config, self.federation, self.class_names
        # Personal models are scored on each client's own samples, whatever the server has.
        holdout = self.test_set is None or config.personal.personalise != "none"
        strategy = StatisticsStrategy(
            len(class_names),
            tuple(config.configured_methods.values()),
            feature_dim=self.backbone.feature_dim,
            min_clients=min(config.federation.min_clients, len(federation.hosts)),
            fraction_train=config.federation.fraction_train,
            seed=config.run.seed,
            wire_dtype=config.federation.wire_dtype,
            backbone_fingerprint=self.backbone.fingerprint,
            class_names=class_names if self.align_names else (),
            holdout=config.data.holdout_fraction if holdout else 0.0,
        )
        # Labels per client are what some sites would rather not show: the plot is for simulations only.
        keep_labels = federation.simulated and len(federation.hosts) * len(class_names) <= MAX_LABEL_CELLS
        total = len(federation.hosts)

        def on_reply(outcome: ClientOutcome, received: ReceivedStatistics | None) -> None:
            self.folder.append_client(outcome.to_json())
            if received is not None and keep_labels:
                self.label_counts[outcome.client] = received.statistics[0].rows.summed().class_counts.numpy()
            answered = len(strategy.outcomes)
            if answered == total or time.perf_counter() - self.last_line > SECONDS_BETWEEN_LINES:
                self.last_line = time.perf_counter()
                collection = strategy.collection
                failed = sum(not outcome.in_heads for outcome in strategy.outcomes)
                say(
                    f"{answered} of {total} clients answered, {collection.num_examples:,} samples, "
                    f"{collection.total_wire_bytes / 1e6:,.1f} MB up, {self.elapsed()}"
                    + (f"; {failed} failed" if failed else "")
                )

        strategy.on_reply = on_reply
        self.extension.apply(strategy, class_names)
        return strategy

    def _evaluate_fn(self, strategy: StatisticsStrategy) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        """Return Flower's evaluate_fn: accuracy against bytes after every round, on the server's test set."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if self.test_set is None or not strategy.heads or strategy.num_rounds == 1:
                return None
            confusion = self._on_server(strategy, self.test_set)
            self.rounds.append(
                {
                    "round": server_round,
                    "num_clients": strategy.collection.num_merged,
                    "methods": {
                        name: {"accuracy": matrix.accuracy, "wire_bytes": strategy.wire_bytes(name)}
                        for name, matrix in confusion.items()
                    },
                }
            )
            scores = {name: matrix.accuracy for name, matrix in confusion.items()}
            say(
                f"round {server_round} of {strategy.num_rounds}: "
                + ", ".join(f"{name} {100 * score:.2f}%" for name, score in scores.items())
            )
            return MetricRecord({f"{name}-accuracy": score for name, score in scores.items()})

        return evaluate

    def _on_server(self, strategy: StatisticsStrategy, test_set: ServerTestSet) -> dict[str, ConfusionMatrix]:
        return test_set.evaluate(self._heads(strategy), mask_absent=self.config.run.mask_absent)

    def _heads(self, strategy: StatisticsStrategy) -> dict[str, tuple[FeatureMap, LinearHead]]:
        return {
            name: (strategy.methods()[name].specification.feature_map, head) for name, head in strategy.heads.items()
        }

    def _evaluate(self, grid: ClientGrid, strategy: StatisticsStrategy) -> dict[str, ConfusionMatrix]:
        test_set = self.test_set
        if test_set is None:
            share = f"{100 * self.config.data.holdout_fraction:.0f}%"
            say(f"evaluating on the {share} of their samples that clients kept for it, after {self.elapsed()}")
            confusion, self.calibration, self.evaluation_failures = evaluate_on_clients(
                grid,
                strategy.request,
                strategy.indexed_heads,
                [outcome.client for outcome in strategy.outcomes if outcome.in_heads],
            )
            if not any(matrix.num_examples for matrix in confusion.values()):
                say("nothing was evaluated: no client kept enough samples (holdout-fraction, min-class-count)")
            return confusion
        say(f"evaluating on {len(test_set.dataset):,} test samples of the server, after {self.elapsed()}")
        confusion = self._on_server(strategy, test_set)
        self.calibration = test_set.calibrate(self._heads(strategy))
        self.num_test_unreadable = test_set.num_unreadable
        return confusion

    def _write(self, strategy: StatisticsStrategy, confusion: dict[str, ConfusionMatrix]) -> None:
        evaluated_on = "clients" if self.test_set is None else "server"
        results = [
            method_result(strategy, name, confusion.get(name), self.calibration.get(name)) for name in strategy.heads
        ]
        for result in results:
            metadata = head_metadata(
                self.config,
                self.data_name,
                strategy,
                result,
                self.backbone,
                self.class_names,
                versions(),
                evaluated_on=evaluated_on,
            )
            self.folder.save_head(result.method, strategy.heads[result.method], metadata)
        outcomes = strategy.outcomes
        self.folder.write_results(
            {
                "methods": {result.method: result.to_json() for result in results},
                "num_clients_asked": len(outcomes),
                "num_clients_merged": sum(outcome.outcome == "merged" for outcome in outcomes),
                "num_clients_known": sum(outcome.outcome == "known" for outcome in outcomes),
                "extends": self.extension.to_json(),
                "policy": policy_record(outcomes),
                "num_unreadable": sum(outcome.num_unreadable for outcome in outcomes),
                "refused_nodes": {str(node): reason for node, reason in self.federation.refused.items()},
                "evaluated_on": evaluated_on,
                "num_test_examples": max((matrix.num_examples for matrix in confusion.values()), default=0),
                "num_test_unreadable": self.num_test_unreadable,
                "evaluation_failures": {str(client): reason for client, reason in self.evaluation_failures.items()},
                "wire_bytes_received": strategy.collection.total_wire_bytes,
                "rounds": self.rounds,
                "seconds": round(time.perf_counter() - self.started, 3),
            }
        )
        write_model_card(self.folder.path)
        if self.config.run.plots:
            self._plot(results, confusion)
        say(f"done after {self.elapsed()}")
        print(results_table(results), flush=True)
        self._say_what_failed(outcomes)

    def _plot(self, results: list[MethodResult], confusion: dict[str, ConfusionMatrix]) -> None:
        from fedstats_app.results.plots import write_plots

        labels = [self.label_counts[client] for client in sorted(self.label_counts)]
        write_plots(
            self.folder.plots_path,
            results,
            class_names=self.class_names,
            label_counts=np.stack(labels) if labels else None,
            confusion_matrices={name: matrix.matrix.numpy() for name, matrix in confusion.items()},
            dataset=self.data_name,
            backbone=self.config.backbone.backbone,
        )

    def _say_what_failed(self, outcomes: list[ClientOutcome]) -> None:
        failed = [outcome for outcome in outcomes if not outcome.in_heads]
        for outcome in failed[:10]:
            say(f"client {outcome.client} {outcome.outcome}: {outcome.reason}")
        if failed:
            say(f"{len(failed)} of {len(outcomes)} clients are not in the heads; all reasons are in clients.jsonl")
        if known := sum(outcome.outcome == "known" for outcome in outcomes):
            say(f"{known} clients were in the statistics to extend already and are not counted twice")
        if suppressed := sum(outcome.num_suppressed_classes > 0 for outcome in outcomes):
            say(f"{suppressed} clients left out classes of which they have few samples (min-class-count)")
        for client, reason in list(self.evaluation_failures.items())[:10]:
            say(f"client {client} did not evaluate: {reason}")
        if self.evaluation_failures:
            say(f"{len(self.evaluation_failures)} clients did not evaluate; all reasons are in results.json")
        if self.num_test_unreadable:
            say(f"{self.num_test_unreadable} test samples could not be read and are not in the accuracy")
        unreadable = sum(outcome.num_unreadable for outcome in outcomes)
        if unreadable:
            say(f"{unreadable} samples could not be read; their names are in the log of the node that has them")
