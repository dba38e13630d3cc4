"""The data of a run's clients: parts of one data set, or each node's own. It imports no torch.

So a node answers ``query.clients`` without it: torch is most of what a process costs that does not begin with it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedstats_app.base.option import is_absolute
from fedstats_app.data.data_options import DataOptions, PartitionOptions
from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.loading import is_undivided, load_dataset, resolved
from fedstats_app.data.partition import partition
from fedstats_app.data.persons import at_most_per_person, persons_per_class, with_persons
from fedstats_app.data.subset import at_most_per_class, of_classes, only_classes, without_domain


@functools.lru_cache(maxsize=2)
def training_set(options: DataOptions) -> Dataset:
    """Load, once per process, the data set that clients are partitions of."""
    return _whole(options)[0]


def _whole(options: DataOptions) -> tuple[Dataset, Dataset | None]:
    """Return the training data that a run uses, and the domain that it leaves out."""
    loaded = load_dataset(options.dataset, "train", **options.reading)
    named = with_persons(_named(loaded, options.class_names), options.person_column, options.max_per_person)
    if named.persons is not None and len(kept := at_most_per_person(named, options.max_per_person)) < len(named):
        named = named.subset(kept)
    dataset = only_classes(named, options.classes)
    return without_domain(dataset, options.left_out_domain) if options.left_out_domain else (dataset, None)


def test_split(spec: str, options: DataOptions) -> Dataset | None:
    """Return the test split of a data set, or None if it has none; of tables, with the columns that are named.

    Of the run's own data set that is the domain left out, if there is one. Of a data set that is named for testing and
    has no splits at all, it is everything. Only the run's classes are in it.
    """
    if options.left_out_domain and spec == options.dataset:
        return _whole(options)[1]
    reading = options.reading_of(resolved(spec))
    test = load_dataset(spec, "test", **reading)
    if test is None and spec == options.test_dataset != options.dataset and is_undivided(spec, options.levels):
        test = load_dataset(spec, "train", **reading)
    if test is not None and _is_numbered(test):
        test = _named(test, options.class_names)
    if test is not None and options.person_column in test.columns:
        test = with_persons(test, options.person_column, len(test))
    return of_classes(test, training_set(options).class_names) if test is not None and options.classes else test


@functools.lru_cache(maxsize=2)
def partitions(data: DataOptions, options: PartitionOptions, seed: int) -> list[NDArray[np.int64]]:
    """Return the samples of every client of a simulation, drawn once per process."""
    dataset = training_set(data).grouped()
    kept = np.arange(len(dataset))
    if options.samples_per_class:
        kept = at_most_per_class(dataset.labels, options.samples_per_class, seed)
        dataset = dataset.subset(kept)
    parts = partition(
        dataset,
        partitioner=options.partitioner,
        num_clients=options.num_clients,
        alpha=options.dirichlet_alpha,
        column=options.partition_column,
        classes_per_client=options.classes_per_client,
        seed=seed,
    )
    return [kept[part] for part in parts]


def client_names(data: DataOptions, options: PartitionOptions, seed: int) -> list[str]:
    """Name the clients of a simulation by the column that divides the data; no names if none does.

    Clients who share a value are numbered from 1.
    """
    if not options.by_column:
        return []
    column = training_set(data).columns[options.partition_column]
    values = [str(column[part[0]]) if len(part) else "-" for part in partitions(data, options, seed)]
    if len(set(values)) == len(values):
        return values
    return [f"{value} {values[: place + 1].count(value)}" for place, value in enumerate(values)]


@functools.lru_cache(maxsize=2)
def own_dataset(path: str, options: DataOptions) -> Dataset:
    """Return the data of a node with data of its own, all of it training data."""
    spec = data_spec(path)
    dataset = load_dataset(spec, "train", **options.reading_of(spec), confined=True)
    if is_absolute(options.class_names):  # a run does not make a node read its files
        raise DatasetError("class-names: a file is for simulations; for sites with data of their own, list the names")
    if (test := load_dataset(spec, "test", **options.reading_of(spec), confined=True)) is not None:
        note = f"the test split, {len(test):,} {test.kind}s, is left out: a site holds out some of the others itself"
        dataset = replace(dataset, notes=(*dataset.notes, note))
    dataset = with_persons(dataset, options.person_column, options.max_per_person)
    return _named(dataset, options.class_names) if _is_numbered(dataset) else dataset


def _is_numbered(dataset: Dataset) -> bool:
    return all(name.isdecimal() for name in dataset.class_names)


def _named(dataset: Dataset, given: str) -> Dataset:
    """Give integer labels their names: a list, or a file with one a line, the first that of 0; "" leaves the numbers.

    Raises
    ------
    DatasetError
        If the classes have names already, the file cannot be read, or a label has no name.
    """
    if not given:
        return dataset
    if not _is_numbered(dataset):
        raise DatasetError(
            f"class-names: are for integer labels, {dataset.name} has {', '.join(dataset.class_names[:3])}"
        )
    names = given.split(",")
    if is_absolute(given):
        try:
            names = Path(given).expanduser().read_text(encoding="utf-8-sig").split("\n")
        except (OSError, ValueError) as error:
            raise DatasetError(f"class-names: {given} cannot be read: {error}") from error
    names = [name.strip() for name in names]
    largest = max(map(int, dataset.class_names))
    if "" in names[: largest + 1] or largest >= len(names):
        raise DatasetError(
            f"class-names: must be a name for each label from 0 to {largest} of {dataset.name}, got {len(names)}"
        )
    return replace(dataset, class_names=tuple(names[int(name)] for name in dataset.class_names), numbered=False)


def data_spec(path: str) -> str:
    """Return the spec of data at a path: parquet or CSV files where there are any, saved data sets, else folders."""
    place = Path(path).expanduser()
    for suffix in ("parquet", "csv"):
        folders = (place, place / "data")
        if place.suffix == f".{suffix}" or any(any(folder.glob(f"*.{suffix}")) for folder in folders):
            return f"{suffix}:{path}"
    return resolved(f"folder:{path}")


def hidden_classes(dataset: Dataset, floor: int) -> NDArray[np.int64]:
    """Return the classes of a node's own data, by index, with fewer samples or persons than its floor (or none).

    Not even their names leave the node: a name alone would say that there is such a case.
    """
    return np.flatnonzero(persons_per_class(dataset) < floor)


def listed_classes(dataset: Dataset, floor: int) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Return the class names that a node with data of its own tells the server, and their numbers if they have any.

    Those under the floor are left out; without a floor all are told, also of classes without samples.
    """
    listed = np.setdiff1d(np.arange(len(dataset.class_names)), hidden_classes(dataset, floor))
    names = tuple(dataset.class_names[c] for c in listed)
    numbers = (int(name) if name.isdecimal() else int(c) for name, c in zip(names, listed, strict=True))
    return names, tuple(numbers) if dataset.numbered else None


def aligned(dataset: Dataset, class_names: tuple[str, ...], floor: int) -> tuple[Dataset, NDArray[np.int64]]:
    """Return a node's data with the federation's classes, without samples of classes that it was not told of.

    And (n,) the indices that its samples have in the data as they were.
    """
    hidden = [c for c in hidden_classes(dataset, floor) if dataset.class_names[c] not in class_names]
    if dataset.targets is not None:
        shown_names = tuple(name for c, name in enumerate(dataset.class_names) if c not in hidden)
        targets = dataset.targets.renamed(dataset.class_names, shown_names)
        dataset = replace(dataset, class_names=shown_names, targets=targets)
        hidden = []
    shown = np.flatnonzero(~np.isin(dataset.labels, hidden))
    if len(shown) < len(dataset):
        dataset = dataset.subset(shown)
    return dataset.with_class_names(class_names), shown


def split_holdout(
    dataset: Dataset, indices: NDArray[np.int64], fraction: float, seed: int, client_id: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a client's samples for statistics and those it keeps for evaluation, drawn by (seed, client).

    Where persons are named, all of a person's are in one of them. A client with one keeps it for statistics.
    """
    if fraction == 0.0:
        return indices, indices[:0]
    persons = indices if dataset.persons is None else dataset.persons[indices]
    units, unit = np.unique(persons, return_inverse=True)
    order = np.random.default_rng([seed, 0 if client_id is None else client_id]).permutation(len(units))
    held_out = np.isin(unit, order[: min(round(fraction * len(units)), max(len(units) - 1, 0))])
    return np.sort(indices[~held_out]), np.sort(indices[held_out])
