"""AppConfig: the only reader of run-config. All errors are reported together, before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal, Self

from fedstats_app.backbones.backbone_options import BackboneOptions
from fedstats_app.base.option import (
    ConfigError,
    Options,
    absolute,
    flag,
    flattened,
    one_of,
    option,
    run_folder_or_latest,
    unknown_keys,
    whole,
)
from fedstats_app.data.data_options import CacheOptions, DataOptions, PartitionOptions
from fedstats_app.fedmezo.mezo_options import FedMeZOOptions
from fedstats_app.grid.federation_options import FederationOptions
from fedstats_app.methods import (
    METHODS,
    Method,
    cannot_add,
    cannot_be_noisy,
    method_list,
    method_type,
    varied,
)
from fedstats_app.training.trainers import TRAINERS, Trainer
from fedstats_app.training.training_options import ClientOptions, OptimizerOptions, TuningOptions

# Pixels: the built-in sample's 28 need not become 224.
BUILTIN_INPUT_SIZE = 64


@dataclass(frozen=True)
class RunOptions(Options):
    """Methods, seed, files: what trains from their heads, what is left behind, and where."""

    method: str = option(
        "all",
        method_list((), "all"),
        'all, or some of fedncm,fed3r,fedcof,fedcgs,fedroot, with options: "fedcof@shrinkage=0.1"',
    )
    fine_tune: str = option(
        "none",
        one_of("none", *TRAINERS),
        "none | probe (the head) | full | features (the backbone) | fedmezo",
    )
    means_per_class: int = option(1, whole(1, 10_000), "disjoint means per class and client (FedCOF, FedRoot)")
    seed: int = option(0, whole(0, 2**31 - 1), "same seed, same bytes")
    resume: str = option("", run_folder_or_latest, "/PATH/TO/RUN_FOLDER of an interrupted run, or latest")
    output_dir: str = option("", absolute, 'absolute; "" = ~/fedstats-runs')
    plots: bool = option(True, flag, "PNG files in the run folder")
    save_statistics: Literal["none", "sum", "clients"] = option(
        "sum",
        one_of("none", "sum", "clients"),
        "none | sum, for a later run to extend (sensitive) | clients, each one's too, for fedstats remove (more so)",
    )

    def conflicts(self, config: AppConfig) -> Iterator[str]:
        """Say which variants are none, and what one pass cannot serve together."""
        chosen: dict[str, Any] = {}
        for name in config.methods:
            try:
                chosen[name] = config.options_of(name)
            except ValueError as error:  # with the run's other options, of which a variant has the rest
                yield f"method: {error}"
        ranks = {name: group.rank for name, group in chosen.items() if hasattr(group, "rank")}
        if len(set(ranks.values())) > 1:
            listed = ", ".join(f"{name}: {rank}" for name, rank in ranks.items())
            yield f"method: one run asks for one rank of the scatter's factors, got {listed}"

    @property
    def saves_sum(self) -> bool:
        """True if the run folder keeps the sums of the statistics."""
        return self.save_statistics != "none"

    @property
    def saves_clients(self) -> bool:
        """True if the run folder keeps the statistics of each client."""
        return self.save_statistics == "clients"


@dataclass(frozen=True)
class AppConfig:
    """The options of a run, each group as its owner defines it; what each key means stands in pyproject.toml."""

    run: RunOptions = field(default_factory=RunOptions)
    data: DataOptions = field(default_factory=DataOptions)
    partition: PartitionOptions = field(default_factory=PartitionOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    backbone: BackboneOptions = field(default_factory=BackboneOptions)
    method_options: Mapping[str, Options] = field(
        default_factory=lambda: {name: method.options_type() for name, method in METHODS.items()},
        hash=False,  # a configuration is a key of what a process keeps, and a dict has no hash
    )
    federation: FederationOptions = field(default_factory=FederationOptions)
    tuning: TuningOptions = field(default_factory=TuningOptions)
    local: ClientOptions = field(default_factory=ClientOptions)
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    fedmezo: FedMeZOOptions = field(default_factory=FedMeZOOptions)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to solve, in the order asked for."""
        if self.run.method != "all":
            return tuple(self.run.method.split(","))
        if not self.federation.sums_only:
            return tuple(METHODS)
        every = (self.configured(name) for name in METHODS)
        if self.federation.is_noisy:
            return tuple(method.name for method in every if not cannot_be_noisy(method))
        return tuple(method.name for method in every if not cannot_add(method) and not method.keeps_rows)

    @property
    def configured_methods(self) -> dict[str, Method[Any]]:
        """The methods to solve with their options, by name."""
        return {name: self.configured(name) for name in self.methods}

    def configured(self, name: str) -> Method[Any]:
        """Return a method or variant with its options."""
        run = self.run
        return method_type(name)(self.options_of(name), run.means_per_class, variant=name)

    def options_of(self, method: str) -> Any:
        """Return the options of a method or variant, of its class's type."""
        known = self.method_options.get(method)
        return varied(self.method_options[method_type(method).name], method) if known is None else known

    @property
    def trainer(self) -> Trainer | None:
        """The trainer that starts from the heads, if any."""
        return TRAINERS.get(self.run.fine_tune)

    @property
    def start_heads(self) -> tuple[str, ...]:
        """The heads that stage 2 starts from, in the order asked for; ("best",) for the most accurate one."""
        return self.tuning.start_heads(self.methods)

    def backbone_for(self, *, own_data: bool, weights: str = "") -> BackboneOptions:
        """Return the backbone's options as they are used, on nodes with data of their own or not.

        A node's own path to the weights wins; "" leaves that of the run.
        """
        sized = self.backbone.takes_text or self.backbone.has_own_size
        small = self.data.dataset == "builtin" and not own_data and not sized
        size = self.backbone.input_size or (BUILTIN_INPUT_SIZE if small else 0)
        return replace(
            self.backbone,
            input_size=size,
            backbone_weights=weights or self.backbone.backbone_weights,
            norm="group" if self.tuning.batch_norm == "groupnorm" else "batch",
            feature_map="unit" if self.federation.is_noisy else self.backbone.feature_map,
        )

    def to_run_config(self) -> dict[str, Any]:
        """Return the values under their run-config keys."""
        return {key: value for group in self.groups for key, value in group.to_config().items()}

    @classmethod
    def of(cls, **values: object) -> Self:
        """Return the configuration with some keys set, underscores for hyphens; see :meth:`from_run_config`.

        A table is a mapping: ``AppConfig.of(num_clients=5, fedcof={"shrinkage": 0.1})``.
        """
        return cls.from_run_config({name.replace("_", "-"): value for name, value in flattened(values).items()})

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, object]) -> Self:
        """Check every key and return the configuration; keys that are missing keep their default.

        A table's keys stand in a mapping, or behind its name and a dot as Flower writes them.

        Raises
        ------
        ConfigError
            With all problems: unknown names, wrong types, values out of range, values that exclude each other.
        """
        values, groups = flattened(run_config), {}
        problems = list(unknown_keys(values, cls.known()))
        for name, kind in cls._kinds().items():
            try:
                groups[name] = kind.read(values)
            except ConfigError as error:
                problems += str(error).split("\n")
        if not problems:
            methods = {name: groups.pop(name) for name in METHODS}
            config = cls(**groups, method_options=methods)  # type: ignore[arg-type]  # each of its own kind
            if config.data.folder_levels == "auto" and config.partition.partition_column == "subfolder":
                # Who divides by the folders below the classes has said which are the classes.
                config = replace(config, data=replace(config.data, folder_levels="class"))
            if config.partition.partitioner == "natural-id" and not config.partition.partition_column:
                column = config.data.person_column
                config = replace(config, partition=replace(config.partition, partition_column=column))
            problems = [problem for group in config.groups for problem in group.problems()]
            problems += [problem for group in config.groups for problem in group.conflicts(config)]
            if not problems:
                return config
        raise ConfigError(f"{len(problems)} problem(s) in the run configuration:\n  " + "\n  ".join(problems))

    @property
    def groups(self) -> list[Options]:
        """All groups, those of the methods last."""
        return [
            *(getattr(self, member.name) for member in self._own()),
            *(self.method_options[name] for name in METHODS),
        ]

    @classmethod
    def known(cls) -> dict[str, Field[Any]]:
        """Return the fields of all groups by key."""
        return {key: member for kind in cls._kinds().values() for key, member in kind.keys().items()}

    @classmethod
    def _kinds(cls) -> dict[str, type[Options]]:
        kinds: dict[str, type[Options]] = {member.name: member.default_factory for member in cls._own()}  # type: ignore[misc]
        return {**kinds, **{name: method.options_type for name, method in METHODS.items()}}

    @classmethod
    def _own(cls) -> list[Field[Any]]:
        return [member for member in fields(cls) if member.name != "method_options"]
