"""Options of the data: where samples come from, which client has which, where features are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from fedstats_app.base.option import Options, empty_or, is_absolute, number, one_of, option, text, whole, word_list
from fedstats_app.data.columns import COLUMNS
from fedstats_app.data.layout import FOLDER_LEVELS
from fedstats_app.data.partition import PARTITIONERS, PREFIX, parsed


def is_table(spec: str) -> bool:
    """Return whether a data set has columns to choose from."""
    return spec.startswith(("hub:", "parquet:", "csv:", "arrow:"))


def dataset_spec(value: object) -> object:
    """Check for where a data set is."""
    if isinstance(value, str) and is_absolute(value):
        suffix = value.rpartition(".")[2]
        value = f"{suffix if suffix in ('csv', 'parquet') else 'folder'}:{value}"
    kind, _, where = str(value).partition(":")
    if not (value == "builtin" or (kind in ("hub", "folder", "parquet", "csv", "arrow") and where)):
        raise ValueError("must be builtin, hub:NAME, folder:/PATH, parquet:/PATH, csv:/PATH or arrow:/PATH")
    if kind != "hub" and value != "builtin" and not is_absolute(where):
        # The app does not run in the user's folder, so a relative path would lead somewhere else.
        raise ValueError(f"must name an absolute path, such as {kind}:{os.path.abspath(where)}, or one from ~")
    return value


def column_and_value(value: object) -> object:
    """Check for a column and one of its values."""
    column, equals, wanted = str(value).partition("=")
    if not (column and equals and wanted):
        raise ValueError("must be COLUMN=VALUE")
    return value


def names_or_file(value: object) -> object:
    """Check for names, separated by commas, or the absolute path of a file."""
    return value if isinstance(value, str) and is_absolute(value) else word_list(value)


@dataclass(frozen=True)
class DataOptions(Options):
    """Data: where samples come from, and what clients keep of theirs for evaluation."""

    dataset: str = option(
        "builtin", dataset_spec, "builtin | hub:NAME | folder:/PATH, or /PATH | parquet:/PATH | csv:/PATH | arrow:/PATH"
    )
    test_dataset: str = option(
        "", empty_or(dataset_spec), 'the server\'s test data; "" = the test split, else held-out parts'
    )
    image_column: str = option("", text, '"" = found by its name or type')
    text_column: str = option("", text, '"" = found by its name; several: "a,b"')
    label_column: str = option("", text, '"" = found by its name or type')
    label_separator: str = option("", text, 'between the labels of a sample in one cell, such as "|"')
    label_columns: str = option("", text, 'several labels a sample, each a column of 0 and 1: "edema,mass"')
    target_column: str = option("", text, 'of numbers to predict; several: "age,weight"')
    missing_labels: str = option(
        "unknown", one_of("unknown", "negative"), "what an empty cell and -1 say of several labels: unknown | negative"
    )
    class_names: str = option("", names_or_file, 'of integer labels, from 0: "cat,dog", or /PATH of a file, one a line')
    folder_levels: str = option(
        "auto", one_of(*FOLDER_LEVELS), "auto = classes, or an error in doubt | class | domain/class"
    )
    holdout_fraction: float = option(
        0.2, number(0.0, 0.9), "share kept for evaluation without a test split; 0 = none, Fed3R by leave-one-out"
    )
    classes: str = option("", word_list, '"10" = the first 10; "cat,dog"; "" = all')
    left_out_domain: str = option("", empty_or(column_and_value), "COLUMN=VALUE: the test set, not trained on")
    person_column: str = option("", text, "whose each sample is; subfolder = the folder below the class")
    max_per_person: int = option(50, whole(1, 1_000_000_000), "samples that one person gives")

    @property
    def subset_keys(self) -> list[str]:
        """The keys that take a part of the data, where they are set."""
        return [name for name, value in (("classes", self.classes), ("left-out-domain", self.left_out_domain)) if value]

    @property
    def reading(self) -> dict[str, Any]:
        """Options of reading the data set, as arguments of :func:`fedstats_app.data.load_dataset`."""
        columns = {name: getattr(self, name) for name in COLUMNS if getattr(self, name)}
        return {**columns, "missing_labels": self.missing_labels, "folder_levels": self.levels}

    def reading_of(self, spec: str) -> dict[str, Any]:
        """Return how another data set is read, which has these columns only if it is a table."""
        return self.reading if is_table(spec) else {"folder_levels": self.levels}

    @property
    def levels(self) -> str:
        """Levels of the folders: who names the folders below the classes has said which are the classes."""
        below = self.person_column == "subfolder" and self.folder_levels == "auto"
        return "class" if below else self.folder_levels


def _a_partitioner(value: object) -> object:
    if isinstance(value, str) and value.startswith(PREFIX):
        parsed(value)
        return value
    return one_of(*PARTITIONERS)(value)


@dataclass(frozen=True)
class PartitionOptions(Options):
    """Partitions: how a simulation's samples are split over its clients."""

    num_clients: int = option(
        0, whole(0, 1_000_000), "0 = one for every 50 samples, 2 to 100; or as partition-column or flwr: makes"
    )
    partitioner: str = option(
        "dirichlet",
        _a_partitioner,
        "iid | dirichlet | dirichlet-blocks | pathological | natural-id | domain | fedcof | fedcgs | fedpac | "
        "flwr:NAME(...), any of flwr-datasets",
    )
    dirichlet_alpha: float = option(0.1, number(0.0, open_low=True), "small = few classes on each client")
    partition_column: str = option("", text, 'of natural-id ("" = person-column) and domain')
    classes_per_client: int = option(
        2, whole(1, 1_000_000), "of a client (pathological)", key="partition.classes-per-client"
    )
    samples_per_class: int = option(
        0, whole(0, 1_000_000_000), "most training samples of a class; 0 = all", key="partition.samples-per-class"
    )
    training_flips: Literal["none", "random", "both"] = option(
        "none", one_of("none", "random", "both"), "random = an image or its mirror image | both", key="partition.flips"
    )

    @property
    def by_column(self) -> bool:
        """True if a column of the data divides it among clients."""
        return self.partitioner in ("natural-id", "domain")

    @property
    def by_size(self) -> bool:
        """True if the number of samples decides how many clients there are."""
        return not (self.num_clients or self.by_column or self.partitioner.startswith(PREFIX))

    @property
    def subset_keys(self) -> list[str]:
        """The keys that change which samples a client has, where they are set."""
        each = {"samples-per-class": self.samples_per_class, "training-flips": self.training_flips != "none"}
        return [name for name, value in each.items() if value]

    def conflicts(self, config: Any) -> Iterator[str]:
        """Refuse flips of texts."""
        if config.backbone.takes_text and self.training_flips != "none":
            with_it = f"with backbone {config.backbone.backbone!r}"
            yield f"partition.flips: are for images, got {self.training_flips!r} {with_it}"

    def problems(self) -> list[str]:
        """Refuse a split by a column that is not named."""
        if self.by_column and not self.partition_column:
            return [f"partition-column: partitioner {self.partitioner!r} needs one, got none"]
        return []


@dataclass(frozen=True)
class CacheOptions(Options):
    """Feature cache: whether and where features are kept."""

    feature_cache: str = option(
        "auto", one_of("auto", "off"), "off | auto = in simulation, and if a node has a cache-dir"
    )
    cache_dir: str = option("", text, '"" = $FEDSTATS_CACHE or ~/.cache/fedstats')
