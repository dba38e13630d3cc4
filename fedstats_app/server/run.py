"""Run: the values that all stages of a run share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.backbone_options import BackboneOptions
from fedstats_app.backbones.feature_reader import FeatureReader, check_kind
from fedstats_app.backbones.measurements import FeatureNorm, feature_norm
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.option import ConfigError
from fedstats_app.base.progress import Progress
from fedstats_app.base.threads import PROCESS
from fedstats_app.data import Dataset
from fedstats_app.data.clients import client_names, partitions, test_split, training_set
from fedstats_app.data.description import check_classes, clients_in_words, description, doubts, listed
from fedstats_app.data.paths import without_folders
from fedstats_app.data.persons import num_given
from fedstats_app.grid.client_grid import ClientGrid
from fedstats_app.grid.discovery import Federation, discover
from fedstats_app.methods import Method
from fedstats_app.report.record import check_same_run, common_metadata, run_record
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.state import State
from fedstats_app.secure.account import Promise
from fedstats_app.server.evaluation_data import ServerTestSet
from fedstats_app.server.extension import Extension
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.strategies import StatisticsStrategy
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire import Limits

OWN_DATA = "each node's own data"
# Assumed feature dimension for the limit on classes until the backbone is loaded.
USUAL_FEATURE_DIM = 2048
# With so many sites a second worker saves more time than it takes to start (research/performance.md).
MANY_SITES = 4000


@dataclass(frozen=True)
class Run:
    """Values that all stages of a run share.

    Attributes
    ----------
    config : AppConfig
        With nothing left to be measured.
    folder : RunFolder
    reader : FeatureReader
        With the pre-trained backbone.
    feature_norm : FeatureNorm
        Of its features.
    class_names : tuple of str
        The federation's, in the order of their ids.
    align_names : bool
        Whether clients need the class names to align their labels.
    data_name : str
        Of the training data.
    metadata : mapping
        Of all heads (:func:`fedstats_app.report.record.common_metadata`).
    extension : Extension
        Statistics of an earlier run to add.
    federation : Federation
        The SuperNodes and the clients that they host.
    grid : ClientGrid
    test_set : ServerTestSet or None
        None if models are evaluated on the clients' hold-out samples.
    progress : Progress
    targets : {"", "labels", "numbers"}
        What samples have in place of one class.
    """

    config: AppConfig
    folder: RunFolder
    reader: FeatureReader
    feature_norm: FeatureNorm
    class_names: tuple[str, ...]
    align_names: bool
    data_name: str
    metadata: Mapping[str, str]
    extension: Extension
    federation: Federation
    grid: ClientGrid
    test_set: ServerTestSet | None
    progress: Progress
    targets: str = ""

    @property
    def backbone(self) -> Backbone:
        """The pre-trained network; it stays as it is."""
        return self.reader.backbone

    @property
    def holdout(self) -> float:
        """Share of its samples that each client keeps for evaluation, in all stages."""
        federation = self.config.federation
        # Class lists do not say how many sites hold out samples of a label.
        evaluates = self.test_set is None and not (federation.is_noisy or (federation.sums_only and self.targets))
        return self.config.data.holdout_fraction if evaluates else 0.0

    @property
    def sent_names(self) -> tuple[str, ...]:
        """The class names as requests carry them: none where ids are agreed on."""
        return self.class_names if self.align_names else ()

    @property
    def title(self) -> str:
        """Beginning of the headings of plots: data and backbone."""
        return f"{without_folders(self.data_name)}, {without_folders(self.config.backbone.backbone)}"

    @functools.cached_property
    def names(self) -> dict[int, str]:
        """Names of clients: their owners', or in a simulation the values of the column that divides the data."""
        made = client_names(self.config.data, self.config.partition, self.config.run.seed)
        found = dict(enumerate(made)) if self.federation.simulated else self.federation.client_names
        return {client: name for client, name in found.items() if name}

    def site(self, client: int) -> str:
        """Return a client's name for people, else its number."""
        return f"site {self.names.get(client, client)}"

    def trainable(self, state: State) -> dict[int, int]:
        """Select the clients in the heads that have samples of their own, with their number."""
        able = self.federation.hosts.keys() - self.federation.statistics_only
        return {client: number for client, number in state.clients.items() if number and client in able}

    @property
    def most_samples(self) -> int:
        """Samples that can be in the sums: those of a simulation's data set, else as many as clients may have."""
        number = len(self.federation.hosts) * self.config.federation.max_client_samples
        if self.federation.simulated:
            number = len(training_set(self.config.data)) * (1 + (self.config.partition.training_flips == "both"))
        return number + self.extension.num_examples

    @property
    def promise(self) -> Promise | None:
        """Promise of the noise to each sample; None for runs without noise.

        Raises
        ------
        ValueError
            If the number of samples is needed and was not declared, or delta does not fit it.
        """
        if not self.federation.simulated:
            return self.config.federation.promise(0)
        train, given = training_set(self.config.data), self.config.federation.given
        if given and train.persons is None:
            raise ValueError("dp-unit: person needs person-column, got none")
        number = len(train) if train.persons is None or not given else num_given(train.persons, given)
        return self.config.federation.promise(number)

    @property
    def methods(self) -> tuple[Method[Any], ...]:
        """The methods to solve; of ``all``, those that have heads of the run's targets.

        Raises
        ------
        ValueError
            If one that was asked for has none.
        """
        every = tuple(self.config.configured_methods.values())
        if not self.targets:
            return every
        reasons = {method.full_name: method.cannot_take(self.targets) for method in every}
        able = tuple(method for method in every if not reasons[method.full_name])
        if self.config.run.method != "all" and len(able) < len(every):
            raise ValueError("; ".join(f"{name} {reason}" for name, reason in reasons.items() if reason))
        return able

    def statistics_strategy(self) -> StatisticsStrategy:
        """Make the strategy that serves all methods of the run."""
        config, federation = self.config, self.config.federation
        shared: dict[str, Any] = {
            "feature_dim": self.backbone.feature_dim,
            "min_clients": min(federation.min_clients, len(self.federation.hosts)),
            "seed": config.run.seed,
            "backbone_fingerprint": self.backbone.fingerprint,
            "class_names": self.sent_names,
            "holdout": self.holdout,
            "limits": Limits(self.feature_norm.bound, federation.max_client_samples),
        }
        classes, methods = len(self.class_names), self.methods
        if promise := self.promise:
            from fedstats_app.strategies.noisy_sums import NoisyStatisticsStrategy  # other runs do without

            return NoisyStatisticsStrategy(classes, methods, promise=promise, **shared)
        if federation.sums_only:
            from fedstats_app.strategies.secure_sums import SecureStatisticsStrategy  # other runs do without

            shared |= {"class_names": self.class_names, "targets": self.targets}  # of lists that go in clear
            return SecureStatisticsStrategy(classes, methods, exact_samples=self.most_samples, **shared)
        return StatisticsStrategy(
            classes,
            methods,
            wire_dtype=federation.wire_dtype,
            client_names=self.federation.client_names,
            exact_samples=self.most_samples if federation.exact_sums else 0,
            targets=self.targets,
            only_targets=bool(self.extension.num_added),
            **shared,
        )

    def training_request(self) -> TrainingRequest:
        """Make the part of the request that all trainings share."""
        tuning = self.config.tuning
        return TrainingRequest(
            len(self.class_names),
            options=self.config.local.with_rate(),
            temperature=tuning.logit_temperature,
            tune_bias=tuning.tune_bias,
            seed=self.config.run.seed,
            holdout=self.holdout,
            backbone_fingerprint=self.backbone.fingerprint,
            class_names=self.sent_names,
        )


def prepare(
    config: AppConfig, folder: RunFolder, grid: Grid, progress: Progress, on_reply: Callable[[Message], None]
) -> Run:
    """Find the clients, load what the run needs, and refuse what cannot work before clients are asked for statistics.

    ``folder`` may be that of an interrupted run; ``on_reply`` sees every reply.

    Raises
    ------
    TooFewClients, ValueError
        If the run cannot begin, or is not the one that was interrupted.
    """
    extension = Extension(config.federation)
    federation = _find_clients(config, grid, extension, progress, on_reply)
    with progress.doing("loading the data and splitting it"):
        test_data = _test_data(config, federation)
        data_doubts = _describe_data(config, federation, test_data, progress)
    options = config.backbone_for(own_data=not federation.simulated)
    backbone = _load_backbone(config, options, progress)
    class_names, agreed = _class_names(config, federation, extension, backbone)
    samples = f"test {backbone.kind}s"
    reader = FeatureReader(backbone, NodeConfig().cache_root(config.cache), progress=progress, samples=samples)
    test_set = None if test_data is None else ServerTestSet(test_data.with_class_names(class_names), reader)
    clients = ClientGrid(grid, federation.hosts, reply_timeout=config.federation.reply_timeout)
    clients.on_reply, clients.progress = on_reply, progress
    data_name = config.data.dataset if federation.simulated else OWN_DATA
    targets = _targets(config, federation)
    run = Run(
        config=config,
        folder=folder,
        reader=reader,
        feature_norm=feature_norm(backbone),
        class_names=class_names,
        align_names=not agreed,
        data_name=data_name,
        metadata=common_metadata(options, backbone, data_name, class_names, config.run.seed, targets),
        extension=extension,
        federation=federation,
        grid=clients,
        test_set=test_set,
        progress=progress,
        targets=targets,
    )
    if promise := run.promise:
        from fedstats_app.server.noise import noise_in_words  # other runs do without

        num_classes, parties = len(class_names), len(federation.hosts)
        whole = len(training_set(config.data)) if federation.simulated else 0
        for line in noise_in_words(promise, config.methods, num_classes, backbone.feature_dim, parties, whole):
            progress.say(line)
    _write_config(run, data_doubts)
    return run


def _find_clients(
    config: AppConfig, grid: Grid, extension: Extension, progress: Progress, on_reply: Callable[[Message], None]
) -> Federation:
    """Wait for SuperNodes, ask which clients they host, and say who came."""
    options = config.federation
    kind = "serve noise" if options.is_noisy else "add up"
    adding = f" (all that {kind})" if options.sums_only and config.run.method == "all" else ""
    progress.say(f"methods {', '.join(config.methods)}{adding}; backbone {config.backbone.backbone}")
    with progress.doing("waiting for SuperNodes and their answers"):
        federation = discover(
            grid,
            config.partition.num_clients or (lambda: len(partitions(config.data, config.partition, config.run.seed))),
            min_clients=extension.min_clients,
            wait_timeout=options.wait_timeout,
            settle_seconds=options.settle_seconds,
            reply_timeout=options.reply_timeout,
            known_classes=extension.class_names,
            max_classes=options.classes_allowed(USUAL_FEATURE_DIM, len(config.methods)),
            on_reply=on_reply,
            progress=progress.say,
        )
    if config.trainer and federation.untrained:
        closed = sorted(federation.client_names.get(client) or str(client) for client in federation.untrained)
        raise ConfigError(f"training is off at {listed(closed)}: an owner opens it with train=true in the node-config")
    found = f"{len(federation.hosts)} sites on {len(federation.supernodes)} SuperNodes after {progress.elapsed}"
    if workers := federation.workers:
        few, most, number = min(workers.values()), max(workers.values()), len(workers)
        threads = f"{few} to {most} threads" if few < most else f"{most} thread{'s' * (most > 1)}"
        found += f", in {number} process{'es' * (number > 1)} of {threads}"
    data = f"a simulation on {config.data.dataset}" if federation.simulated else OWN_DATA
    progress.say(f"{found}; {data}")
    if len(federation.hosts) >= MANY_SITES and max(workers.values(), default=1) > 1 and PROCESS not in workers:
        progress.say(
            'with so many sites a worker for each core is quicker: --federation-config "client-resources-num-cpus=1"'
        )
    return federation


def _test_data(config: AppConfig, federation: Federation) -> Dataset | None:
    subset = config.data.subset_keys + config.partition.subset_keys
    if subset and not federation.simulated:
        raise ValueError(
            f"{', '.join(subset)}: for simulations only; SuperNodes with data of their own use all of them"
        )
    spec = config.data.test_dataset or (config.data.dataset if federation.simulated else "")
    dataset = test_split(spec, config.data) if spec else None
    if dataset is None and config.data.test_dataset:
        raise ValueError(f"test-dataset must have a test split, got {config.data.test_dataset!r} without one")
    return dataset


def _describe_data(config: AppConfig, federation: Federation, test: Dataset | None, progress: Progress) -> list[str]:
    """Describe the data before anything is computed, refuse those that no run can use, and return the doubts.

    Of nodes with data of their own only the names of their classes are known.
    """
    if not federation.simulated:
        names = federation.class_names
        progress.say(f"all nodes together have {len(names)} classes ({listed(names)})")
        return []
    train = training_set(config.data)
    progress.say(f"data: {description(train, test)}")
    for line in (*train.notes, *(found := doubts(train, test, config.partition.partition_column))):
        progress.say(f"data: {line}")
    check_classes(train)
    # A split that cannot be made is one error here, not one on every client.
    parts = partitions(config.data, config.partition, config.run.seed)
    values = train.columns.get(config.partition.partition_column, ()) if config.partition.by_column else ()
    number = clients_in_words(parts, train, by_size=config.partition.by_size)
    column = f" of {listed(sorted({str(value) for value in values}))}" if len(values) else ""
    progress.say(f"data: {config.partition.partitioner}{column} makes {number}")
    return found


def _load_backbone(config: AppConfig, options: BackboneOptions, progress: Progress) -> Backbone:
    """Load the backbone, and say what computes its features and what its licence is."""
    with progress.doing(f"loading backbone {options.backbone}"):
        backbone = loaded_backbone(options, NodeConfig().engine_root(config.cache))
        engine = backbone.engine_in_words
    pixels = f" from images of {backbone.sizes} pixels (input-size)" if backbone.kind == "image" else ""
    progress.say(f"features by {engine}{pixels}; licence of the weights, and so of the heads: {backbone.licence}")
    return backbone


def _class_names(
    config: AppConfig, federation: Federation, extension: Extension, backbone: Backbone
) -> tuple[tuple[str, ...], bool]:
    """Return the classes of the run, and whether all clients number them so already."""
    own_names = federation.class_names
    if federation.simulated:
        check_kind(training_set(config.data), backbone)
        own_names = training_set(config.data).class_names
    class_names = extension.with_earlier_classes(own_names)
    allowed = config.federation.classes_allowed(backbone.feature_dim, len(config.methods))
    if allowed is not None and len(class_names) > allowed:  # before any array of them is made
        raise ValueError(
            f"max-classes: the run has {len(class_names)} classes, this machine's memory takes {allowed} of "
            f"{backbone.feature_dim} features: fewer methods, or a larger max-classes if you know better"
        )
    return class_names, federation.simulated and class_names == own_names


def _targets(config: AppConfig, federation: Federation) -> str:
    """Return what samples have in place of one class, or refuse what a run cannot do with it."""
    own = training_set(config.data).targets if federation.simulated else None
    targets = federation.targets if own is None else own.kind
    if not targets:
        return ""
    refused = {
        "fine-tune": bool(config.trainer),
        "dp-epsilon": config.federation.is_noisy,
        "secure-sums": config.federation.sums_only and targets == "numbers",
        "exact-sums": config.federation.exact_sums and targets == "numbers",
        "classes": bool(config.data.classes),
    }
    if problems := [key for key, is_set in refused.items() if is_set]:
        raise ValueError(f"{', '.join(problems)}: not for {'several labels' if targets == 'labels' else targets} yet")
    return targets


def _write_config(run: Run, data_doubts: list[str]) -> None:
    """Write config.json; a resumed run must have the settings, data and backbone of the interrupted one."""
    config, federation = run.config, run.federation
    record = run_record(
        config.to_run_config(),
        run.data_name,
        run.backbone,
        run.class_names,
        clients=len(federation.hosts),
        supernodes=len(federation.supernodes),
    )
    if run.names:
        record["client_names"] = {str(client): name for client, name in run.names.items()}
    record |= {"data_doubts": data_doubts, "simulated": federation.simulated}
    record |= {"targets": run.targets} if run.targets else {}
    if config.run.resume:
        for difference in check_same_run(run.folder.path, record):
            run.progress.say(f"results may differ in rounding from those of an uninterrupted run: {difference}")
    run.folder.write_config(record)
