"""The ServerApp: the stages of a run in their order. It does no mathematics."""

from __future__ import annotations

import fedstats_app.threads  # noqa: F401  # first: it must come before torch

# isort: split

import logging
import time
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedstats_app.backbones import Backbone
from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.console import LastWord, quiet_flower, say
from fedstats_app.heads import CalibrationSums, ConfusionMatrix, LinearHead
from fedstats_app.results import MethodResult, RunFolder, results_table, write_model_card
from fedstats_app.results.disclosure import append_disclosure, policy_record
from fedstats_app.results.personal_table import personal_table
from fedstats_app.results.record import head_metadata, method_result, run_record, versions
from fedstats_app.results.resume import ClosedFormStage, check_same_run, closed_form_stage
from fedstats_app.results.statistics_file import save_statistics
from fedstats_app.results.training_table import training_table
from fedstats_app.server_data import ServerTestSet
from fedstats_app.server_extension import Extension
from fedstats_app.server_training import FineTuningStage
from fedstats_app.site import FeatureReader, backbone_for, cache_root, partitions, test_split, training_set
from fedstats_app.statistics import FeatureMap
from fedstats_app.strategies import ClientGrid, ClientOutcome, Federation, StatisticsStrategy, discover, make_strategy
from fedstats_app.strategies.evaluation import evaluate_on_clients
from fedstats_app.strategies.exchange import SERVER_SIDE_CODES
from fedstats_app.strategies.personal import run_personal
from fedstats_app.wire import ReceivedStatistics
from fedstats_app.wire.disclosure import DisclosureLedger

app = ServerApp()

# A plot of the labels of every client needs a table of clients x classes; above this size none is kept.
MAX_LABEL_CELLS = 5_000_000
SECONDS_BETWEEN_LINES = 5.0
OWN_DATA = "each node's own data"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all stages; whatever goes wrong is in the last line printed and in the run folder's status."""
    folder: RunFolder | None = None
    try:
        folder = _run_folder(context)
        config = AppConfig.from_run_config(context.run_config)
        if config.resume:
            folder = RunFolder.reopen(config.resume, context.run_id)
        elif folder is None:
            folder = RunFolder.create(config.output_dir, context.run_id)
        folder.write_status("running")
        Run(config, folder).execute(grid)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        if folder is not None:
            folder.write_status("failed", reason)
            say(f"run folder: {folder.path}")
        say(f"FAILED: {reason}")
        logging.getLogger("flwr").addHandler(LastWord(f"[fedstats] FAILED: {' '.join(reason.split())}"))
        raise
    folder.write_status("completed")
    say(f"completed; results are in\n{folder.path}")
    logging.getLogger("flwr").addHandler(LastWord(str(folder.path)))


def _run_folder(context: Context) -> RunFolder | None:
    """Make the run folder before anything is checked, so that a wrong configuration leaves its reason there too."""
    if context.run_config.get("resume"):
        return None
    try:
        return RunFolder.create(str(context.run_config.get("output-dir", "")), context.run_id)
    except (ValueError, OSError):
        return None  # the configuration's own check says what is wrong with it, along with all other problems


@dataclass
class Run:
    """One run: its configuration, its folder, and what the stages hand on."""

    config: AppConfig
    folder: RunFolder
    started: float = field(default_factory=time.perf_counter)
    last_line: float = 0.0
    data_name: str = ""
    evaluation_failures: dict[int, str] = field(default_factory=dict)
    calibration: dict[str, CalibrationSums] = field(default_factory=dict)
    num_test_unreadable: int = 0
    label_counts: dict[int, np.ndarray] = field(default_factory=dict)
    rounds: list[dict[str, object]] = field(default_factory=list)
    disclosure: DisclosureLedger = field(default_factory=lambda: DisclosureLedger(SERVER_SIDE_CODES))
    align_names: bool = True

    def execute(self, grid: Grid) -> None:
        """Go through the stages; whatever comes of them, write down what left each site."""
        try:
            self._stages(grid)
        finally:
            append_disclosure(
                self.folder.path, self.disclosure.entries(), run_id=self.folder.run_id, methods=self.config.methods
            )

    def _stages(self, grid: Grid) -> None:
        config = self.config
        say(f"methods {', '.join(config.methods)}; backbone {config.backbone}")
        extension = Extension(config)
        federation = discover(
            grid,
            config.num_clients,
            min_clients=extension.min_clients,
            wait_timeout=config.wait_timeout,
            settle_seconds=config.settle_seconds,
            reply_timeout=config.reply_timeout,
            known_classes=extension.class_names,
            on_reply=self.disclosure.note,
            progress=say,
        )
        supernodes = len(set(federation.hosts.values()))
        self.data_name = config.dataset if federation.simulated else OWN_DATA
        say(f"{len(federation.hosts)} clients on {supernodes} SuperNodes after {self._elapsed()}; {self.data_name}")
        if federation.simulated:
            partitions(config)  # a split that cannot be made is one error here, not one on every client
        backbone = backbone_for(config, own_data=not federation.simulated)
        own_names = training_set(config).class_names if federation.simulated else federation.class_names
        class_names = extension.with_earlier_classes(own_names)
        self.align_names = not federation.simulated or class_names != own_names
        test_set = self._test_set(federation, backbone, class_names)
        if "fed3r" in config.methods and config.fed3r_random_features and config.fed3r_kernel_width == "auto":
            config = replace(config, fed3r_kernel_width=self._kernel_width(test_set))
        # Personal models are scored on each client's own samples, whatever the server has.
        held_out = test_set is None or config.personalise != "none"
        strategy = self._strategy(config, federation, backbone, class_names, holdout=held_out)
        extension.apply(strategy, class_names)
        clients = ClientGrid(
            grid,
            federation.hosts,
            reply_timeout=config.reply_timeout,
            window_bytes=config.window_megabytes * 2**20,
            expected_reply_bytes=strategy.expected_reply_bytes,
        )
        clients.on_reply = self.disclosure.note
        record = run_record(
            config, self.data_name, backbone, class_names, clients=len(federation.hosts), supernodes=supernodes
        )
        if config.resume:
            for difference in check_same_run(self.folder.path, record):
                say(f"results may differ in rounding from those of an uninterrupted run: {difference}")
        self.folder.write_config(record)
        solved = closed_form_stage(self.folder.path) if config.resume else None
        if solved is None:
            self.folder.forget_clients()
            say(f"asking {len(federation.hosts)} clients for the statistics of their features")
            with quiet_flower():
                strategy.start(clients, evaluate_fn=self._evaluate_fn(strategy, test_set))
            if config.save_statistics:
                save_statistics(self.folder.path, strategy.collection.collected(class_names, self.folder.run_id))
            confusion = self._evaluate(clients, strategy, test_set)
            self._write(config, strategy, backbone, class_names, confusion, federation, extension)
            solved = closed_form_stage(self.folder.path)
        if solved is None:
            return
        trainable = {
            client: number
            for client, number in solved.clients.items()
            if number and client in federation.hosts and client not in federation.statistics_only
        }
        if config.fine_tune != "none":
            holdout = strategy.request.holdout
            self._train(config, clients, trainable, backbone, class_names, test_set, solved, holdout)
        if config.personalise != "none":
            self._personalise(config, clients, trainable, strategy, backbone)

    def _elapsed(self) -> str:
        return f"{time.perf_counter() - self.started:.0f} s"

    def _test_set(
        self, federation: Federation, backbone: Backbone, class_names: tuple[str, ...]
    ) -> ServerTestSet | None:
        config = self.config
        spec = config.test_dataset or (config.dataset if federation.simulated else "")
        columns = (config.image_column, config.label_column) if spec.startswith(("hub:", "parquet:")) else ("", "")
        dataset = test_split(spec, *columns) if spec else None
        if dataset is None and config.test_dataset:
            raise ValueError(f"test-dataset must have a test split, got {config.test_dataset!r} without one")
        if dataset is None:
            return None
        reader = FeatureReader(backbone, cache_root(config, NodeConfig()))
        return ServerTestSet(dataset.with_class_names(class_names), reader)

    def _kernel_width(self, test_set: ServerTestSet | None) -> float:
        if test_set is None:
            raise ValueError(
                "fed3r-kernel-width must be a number where the server has no test data to measure it on, got auto"
            )
        width = test_set.kernel_width()
        say(f"fed3r-kernel-width: median distance between the server's test features, {width:.4g}")
        return width

    def _strategy(
        self,
        config: AppConfig,
        federation: Federation,
        backbone: Backbone,
        class_names: tuple[str, ...],
        *,
        holdout: bool,
    ) -> StatisticsStrategy:
        strategy = make_strategy(
            config,
            len(class_names),
            feature_dim=backbone.feature_dim,
            min_clients=min(config.min_clients, len(federation.hosts)),
            fraction_train=config.fraction_train,
            seed=config.seed,
            wire_dtype=config.wire_dtype,
            backbone_fingerprint=backbone.fingerprint,
            class_names=class_names if self.align_names else (),
            holdout=config.holdout_fraction if holdout else 0.0,
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
                    f"{collection.total_wire_bytes / 1e6:,.1f} MB up, {self._elapsed()}"
                    + (f"; {failed} failed" if failed else "")
                )

        strategy.on_reply = on_reply
        return strategy

    def _evaluate_fn(self, strategy: StatisticsStrategy, test_set: ServerTestSet | None):  # type: ignore[no-untyped-def]  # the type of a callback, stated below
        """Return Flower's evaluate_fn: accuracy against bytes after every round, on the server's test set."""

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            if test_set is None or not strategy.heads or strategy.num_rounds == 1:
                return None
            confusion = self._on_server(strategy, test_set)
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
        return test_set.evaluate(self._heads(strategy), mask_absent=self.config.mask_absent)

    def _heads(self, strategy: StatisticsStrategy) -> dict[str, tuple[FeatureMap, LinearHead]]:
        return {
            name: (strategy.methods()[name].specification.feature_map, head) for name, head in strategy.heads.items()
        }

    def _train(
        self,
        config: AppConfig,
        grid: ClientGrid,
        clients: dict[int, int],
        backbone: Backbone,
        class_names: tuple[str, ...],
        test_set: ServerTestSet | None,
        solved: ClosedFormStage,
        holdout: float,
    ) -> None:
        """Stage 2: train from the heads, on the clients that are in them."""
        say(f"fine-tune {config.fine_tune} by {config.optimizer} on {len(clients)} clients, after {self._elapsed()}")
        stage = FineTuningStage(
            config,
            self.folder,
            backbone,
            class_names,
            grid,
            clients,
            solved.heads,
            test_set,
            self.data_name,
            config.holdout_fraction if test_set is None else 0.0,
            self.align_names,
            say,
        )
        results = stage.run()
        write_model_card(self.folder.path)
        say(f"done after {self._elapsed()}")
        print(training_table(results), flush=True)

    def _personalise(
        self,
        config: AppConfig,
        grid: ClientGrid,
        clients: dict[int, int],
        strategy: StatisticsStrategy,
        backbone: Backbone,
    ) -> None:
        """Make a model for every client by each of the approaches, scored on what the client kept."""
        say(f"personalise {config.personalise} on {len(clients)} clients, after {self._elapsed()}")
        with quiet_flower():
            results = run_personal(grid, config, strategy, backbone.module, clients=clients, say=say)
        self.folder.add_results("personal", {name: result.to_json() for name, result in results.items()})
        if config.plots:
            from fedstats_app.results.plots.personal import plot_personal_accuracies

            accuracies = {name: list(result.accuracies.values()) for name, result in results.items()}
            title = f"{self.data_name}, {config.backbone}, {len(clients)} clients"
            plot_personal_accuracies(accuracies, self.folder.plots_path / "personal.png", title)
        say(f"done after {self._elapsed()}")
        print(personal_table(list(results.values())), flush=True)

    def _evaluate(
        self, grid: ClientGrid, strategy: StatisticsStrategy, test_set: ServerTestSet | None
    ) -> dict[str, ConfusionMatrix]:
        if test_set is None:
            share = f"{100 * self.config.holdout_fraction:.0f}%"
            say(f"evaluating on the {share} of their samples that clients kept for it, after {self._elapsed()}")
            confusion, self.calibration, self.evaluation_failures = evaluate_on_clients(grid, strategy)
            if not any(matrix.num_examples for matrix in confusion.values()):
                say("nothing was evaluated: no client kept enough samples (holdout-fraction, min-class-count)")
            return confusion
        say(f"evaluating on {len(test_set.dataset):,} test samples of the server, after {self._elapsed()}")
        confusion = self._on_server(strategy, test_set)
        self.calibration = test_set.calibrate(self._heads(strategy))
        self.num_test_unreadable = test_set.num_unreadable
        return confusion

    def _write(
        self,
        config: AppConfig,
        strategy: StatisticsStrategy,
        backbone: Backbone,
        class_names: tuple[str, ...],
        confusion: dict[str, ConfusionMatrix],
        federation: Federation,
        extension: Extension,
    ) -> None:
        results = [
            method_result(strategy, name, confusion.get(name), self.calibration.get(name)) for name in strategy.heads
        ]
        for result in results:
            metadata = head_metadata(config, self.data_name, strategy, result, backbone, class_names, versions())
            self.folder.save_head(result.method, strategy.heads[result.method], metadata)
        outcomes = strategy.outcomes
        self.folder.write_results(
            {
                "methods": {result.method: result.to_json() for result in results},
                "num_clients_asked": len(outcomes),
                "num_clients_merged": sum(outcome.outcome == "merged" for outcome in outcomes),
                "num_clients_known": sum(outcome.outcome == "known" for outcome in outcomes),
                "extends": extension.to_json(),
                "policy": policy_record(outcomes),
                "num_unreadable": sum(outcome.num_unreadable for outcome in outcomes),
                "refused_nodes": {str(node): reason for node, reason in federation.refused.items()},
                "evaluated_on": "server" if not strategy.request.holdout else "clients",
                "num_test_examples": max((matrix.num_examples for matrix in confusion.values()), default=0),
                "num_test_unreadable": self.num_test_unreadable,
                "evaluation_failures": {str(client): reason for client, reason in self.evaluation_failures.items()},
                "wire_bytes_received": strategy.collection.total_wire_bytes,
                "rounds": self.rounds,
                "seconds": round(time.perf_counter() - self.started, 3),
            }
        )
        write_model_card(self.folder.path)
        if config.plots:
            self._plot(config, results, class_names, confusion)
        say(f"done after {self._elapsed()}")
        print(results_table(results), flush=True)
        self._say_what_failed(outcomes)

    def _plot(
        self,
        config: AppConfig,
        results: list[MethodResult],
        class_names: tuple[str, ...],
        confusion: dict[str, ConfusionMatrix],
    ) -> None:
        from fedstats_app.results.plots import write_plots

        labels = [self.label_counts[client] for client in sorted(self.label_counts)]
        write_plots(
            self.folder.plots_path,
            results,
            class_names=class_names,
            label_counts=np.stack(labels) if labels else None,
            confusion_matrices={name: matrix.matrix.numpy() for name, matrix in confusion.items()},
            dataset=self.data_name,
            backbone=config.backbone,
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
