"""The ServerApp: the stages of a run in their order. It does no mathematics."""

from __future__ import annotations

import fedstats_app.threads  # noqa: F401  # first: it must come before torch

# isort: split

import logging
import time
from dataclasses import dataclass, field

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.loading import loaded_backbone
from fedstats_app.backbones.samples import check_kind
from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.data.clients import partitions, test_split, training_set
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import Federation, discover
from fedstats_app.grid.exchange import SERVER_SIDE_CODES
from fedstats_app.personal.approaches import run_personal
from fedstats_app.results import RunFolder, write_model_card
from fedstats_app.results.disclosure import append_disclosure
from fedstats_app.results.personal_table import approach_name, personal_table
from fedstats_app.results.record import run_record
from fedstats_app.results.resume import ClosedFormStage, check_same_run, closed_form_stage
from fedstats_app.results.training_table import training_table
from fedstats_app.server.closed_form import ClosedForm
from fedstats_app.server.console import LastWord, quiet_flower, say
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.server.extension import Extension
from fedstats_app.server.fine_tuning import FineTuningStage, label_word_head
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.wire.disclosure import DisclosureLedger

app = ServerApp()

OWN_DATA = "each node's own data"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all stages; whatever goes wrong is in the last line printed and in the run folder's status."""
    folder: RunFolder | None = None
    try:
        folder = _run_folder(context)
        config = AppConfig.from_run_config(context.run_config)
        if config.run.resume:
            folder = RunFolder.reopen(config.run.resume, context.run_id)
        elif folder is None:
            folder = RunFolder.create(config.run.output_dir, context.run_id)
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
    data_name: str = ""
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
        say(f"methods {', '.join(config.methods)}; backbone {config.backbone.backbone}")
        extension = Extension(config)
        federation = discover(
            grid,
            config.partition.num_clients,
            min_clients=extension.min_clients,
            wait_timeout=config.federation.wait_timeout,
            settle_seconds=config.federation.settle_seconds,
            reply_timeout=config.federation.reply_timeout,
            known_classes=extension.class_names,
            on_reply=self.disclosure.note,
            progress=say,
        )
        supernodes = len(set(federation.hosts.values()))
        self.data_name = config.data.dataset if federation.simulated else OWN_DATA
        say(f"{len(federation.hosts)} clients on {supernodes} SuperNodes after {self._elapsed()}; {self.data_name}")
        if federation.simulated:
            # A split that cannot be made is one error here, not one on every client.
            partitions(config.data, config.partition, config.run.seed)
        backbone = loaded_backbone(config.backbone_for(own_data=not federation.simulated))
        own_names = training_set(config.data).class_names if federation.simulated else federation.class_names
        if federation.simulated:
            check_kind(training_set(config.data), backbone)
        class_names = extension.with_earlier_classes(own_names)
        self.align_names = not federation.simulated or class_names != own_names
        if config.tuning.fine_tune != "none" and "label-words" in config.start_heads:
            label_word_head(
                config.tuning.words, backbone, class_names
            )  # words that do not suit are an error now, not after stage 1
        test_set = self._test_set(federation, backbone, class_names)
        config = config.measured(None if test_set is None else test_set.features, say)
        closed_form = ClosedForm(
            config,
            self.folder,
            backbone,
            class_names,
            self.data_name,
            federation,
            extension,
            test_set,
            self.align_names,
            self.started,
        )
        strategy = closed_form.make_strategy()
        clients = ClientGrid(
            grid,
            federation.hosts,
            reply_timeout=config.federation.reply_timeout,
            window_bytes=config.federation.window_megabytes * 2**20,
            expected_reply_bytes=strategy.expected_reply_bytes,
        )
        clients.on_reply = self.disclosure.note
        record = run_record(
            config, self.data_name, backbone, class_names, clients=len(federation.hosts), supernodes=supernodes
        )
        if config.run.resume:
            for difference in check_same_run(self.folder.path, record):
                say(f"results may differ in rounding from those of an uninterrupted run: {difference}")
        self.folder.write_config(record)
        solved = closed_form_stage(self.folder.path) if config.run.resume else None
        if solved is None:
            closed_form.run(clients, strategy)
            solved = closed_form_stage(self.folder.path)
        if solved is None:
            return
        trainable = {
            client: number
            for client, number in solved.clients.items()
            if number and client in federation.hosts and client not in federation.statistics_only
        }
        if config.tuning.fine_tune != "none":
            self._train(config, clients, trainable, backbone, class_names, test_set, solved)
        if config.personal.personalise != "none":
            self._personalise(config, clients, trainable, strategy, backbone)

    def _elapsed(self) -> str:
        return f"{time.perf_counter() - self.started:.0f} s"

    def _test_set(
        self, federation: Federation, backbone: Backbone, class_names: tuple[str, ...]
    ) -> ServerTestSet | None:
        config = self.config
        spec = config.data.test_dataset or (config.data.dataset if federation.simulated else "")
        dataset = test_split(spec, config.data) if spec else None
        if dataset is None and config.data.test_dataset:
            raise ValueError(f"test-dataset must have a test split, got {config.data.test_dataset!r} without one")
        if dataset is None:
            return None
        reader = FeatureReader(backbone, NodeConfig().cache_root(config.cache))
        return ServerTestSet(dataset.with_class_names(class_names), reader)

    def _train(
        self,
        config: AppConfig,
        grid: ClientGrid,
        clients: dict[int, int],
        backbone: Backbone,
        class_names: tuple[str, ...],
        test_set: ServerTestSet | None,
        solved: ClosedFormStage,
    ) -> None:
        """Stage 2: train from the heads, on the clients that are in them."""
        how = "" if config.tuning.fine_tune == "fedmezo" else f" by {config.optimizer.optimizer}"
        say(f"fine-tune {config.tuning.fine_tune}{how} on {len(clients)} clients, after {self._elapsed()}")
        # What stage 1 measured at temperature 1, on all clients, with features as training computes them.
        as_in_training = config.tuning.temperature == 1.0 and (
            config.backbone.autocast == "none" or config.tuning.fine_tune == "probe"
        )
        known = solved.client_scores if as_in_training and clients.keys() == solved.clients.keys() else {}
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
            # Clients keep for themselves what they kept in stage 1, also where it is for personal models only.
            config.data.holdout_fraction if test_set is None or config.personal.approaches else 0.0,
            self.align_names,
            say,
            known,
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
        say(f"personalise {config.personal.personalise} on {len(clients)} clients, after {self._elapsed()}")
        with quiet_flower():
            results = run_personal(grid, config, strategy, backbone.module, clients=clients, say=say)
        self.folder.add_results("personal", {name: result.to_json() for name, result in results.items()})
        if config.run.plots:
            from fedstats_app.results.plots.personal import plot_personal_accuracies

            accuracies = {approach_name(name): list(one.accuracies.values()) for name, one in results.items()}
            title = f"{self.data_name}, {config.backbone.backbone}, {len(clients)} clients"
            plot_personal_accuracies(accuracies, self.folder.plots_path / "personal.png", title)
        say(f"done after {self._elapsed()}")
        print(personal_table(list(results.values())), flush=True)
