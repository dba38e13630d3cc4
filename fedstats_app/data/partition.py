"""Splitting a data set over simulated clients.

The partitioners of flwr-datasets are written as in Python: flwr:ShardPartitioner(partition_by='label', shard_size=50).
That text is parsed, never run: a class of ``flwr_datasets.partitioner`` with literals as keyword arguments.
"""

import ast
import dataclasses
import inspect
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.paper_partitions import Indices, fedcgs_partition, fedcof_partition, fedpac_partition

PARTITIONERS = (
    *("iid", "dirichlet", "dirichlet-blocks", "natural-id", "domain"),
    *("pathological", "fedcof", "fedcgs", "fedpac"),
)

PREFIX = "flwr:"
_LONGEST = 10_000  # characters: a node, too, reads the run-config
_INDEX = "index"  # of a sample, a column of the table that a partitioner is given
_FORM = f"{PREFIX}NAME(argument=value, ...), such as {PREFIX}ShardPartitioner(partition_by='label', shard_size=50)"


def usual_number(dataset: Dataset) -> int:
    """Return how many clients a data set makes unless a user says: one for every 50 samples, 2 to 100."""
    return min(max(len(dataset) // 50, 2), 100)


def partition(
    dataset: Dataset,
    *,
    partitioner: str,
    num_clients: int,
    alpha: float = 0.1,
    column: str = "",
    classes_per_client: int = 2,
    uniform_share: float = 0.2,
    seed: int = 0,
) -> list[Indices]:
    """Split a data set's samples over clients.

    Parameters
    ----------
    dataset : Dataset
        Only its labels and columns are read. If it names persons, these are split, each with the class and the columns
        of most of its samples, so that a client has all of a person's or none.
    partitioner : str
        ``iid``: shuffled, then equal parts.
        ``dirichlet``: each class is shuffled and divided over the clients by a draw of Dirichlet(alpha): the shares of
        flwr-datasets' `DirichletPartitioner` without a minimum size, rounded up or down by chance; clients may be
        empty.
        ``dirichlet-blocks``: the same shares of classes that are not shuffled, so that neighbours in the data set's
        order, such as slices of one patient, come to one client.
        ``natural-id``: one client per value of `column`, in sorted order.
        ``domain``: one group of clients per value of `column`, in sorted order, all groups of the same number of
        clients; a domain's samples are shuffled and divided equally within its group.
        ``pathological``: `classes_per_client` classes on each client, flwr-datasets' `PathologicalPartitioner` in its
        mode "first-deterministic" (client k has class k mod C, its other classes are drawn; classes of no client are
        left out with a warning, which cannot happen if there are as many clients as classes).
        ``fedcof``, ``fedcgs``: the split of the FedCOF and FedCGS papers' code (`fedcof_partition`,
        `fedcgs_partition`).
        ``fedpac``: clients of one size, with a share uniform over all classes and the rest from a few dominant ones
        (`fedpac_partition`).
        ``flwr:NAME(...)``: another partitioner of flwr-datasets (`flwr_partition`).
    num_clients : int
        Number of clients K; 0 for one for each value of `column` (``natural-id``, ``domain``), for as many as
        ``flwr:`` makes, and else for :func:`usual_number`.
    alpha : float
        Concentration for ``dirichlet``, ``dirichlet-blocks``, ``fedcof`` and ``fedcgs``, above 0.
    column : str
        For ``natural-id`` and ``domain``.
    classes_per_client : int
        For ``pathological``, in ``[1, C]``.
    uniform_share : float
        For ``fedpac``, in ``[0, 1]``.
    seed : int
        Decides all draws, in ``[0, 2**32)``; the same arguments give the same split on any machine. No global generator
        is touched.

    Returns
    -------
    list of numpy.ndarray
        K arrays ``(n_k,)`` int64, ascending sample indices, disjoint. Together they hold every sample, but for
        ``fedcof`` and ``fedpac`` (which drop n mod K of them) and ``pathological`` (drops classes of no client).

    Raises
    ------
    DatasetError
        If the partitioner is unknown, if there are fewer samples than clients, if the column is missing or has gaps, if
        its values force another number of clients, or if the partitioner finds no such split.
    """
    person = None
    if dataset.persons is not None:
        dataset, person = _persons(dataset, dataset.persons, column if partitioner in ("natural-id", "domain") else "")
    theirs = partitioner.startswith(PREFIX)
    if partitioner not in PARTITIONERS and not theirs:
        raise DatasetError(f"the partitioner must be one of {', '.join(PARTITIONERS)}, got {partitioner!r}")
    if not (num_clients or theirs or partitioner in ("natural-id", "domain")):
        num_clients = usual_number(dataset)
    if not 0 <= num_clients <= len(dataset):
        raise DatasetError(
            f"{dataset.name}: {len(dataset)} samples can be split over 1 to {len(dataset)} clients, got {num_clients}"
        )
    if not 0 < alpha < math.inf:
        raise DatasetError(f"the partitioner's alpha must be above 0 and finite, got {alpha}")
    labels = dataset.labels
    parts: list[Indices]
    match partitioner:
        case "iid":
            parts = np.array_split(np.random.default_rng(seed).permutation(len(dataset)), num_clients)
        case "natural-id" | "domain":
            parts = _by_value(dataset, column, partitioner, num_clients, seed)
        case "fedcof":
            parts = fedcof_partition(labels, num_clients, alpha=alpha, seed=seed)
        case "fedcgs":
            parts = fedcgs_partition(labels, num_clients, alpha=alpha, seed=seed)
        case "fedpac":
            parts = fedpac_partition(labels, num_clients, uniform_share=uniform_share, seed=seed)
        case "pathological":
            parts = _pathological(dataset, num_clients, classes_per_client, seed)
        case str() if theirs:
            parts = flwr_partition(dataset, partitioner, num_clients, seed)
        case _:
            parts = _dirichlet(labels, num_clients, alpha, seed, shuffled=partitioner == "dirichlet")
    return [np.sort(part) if person is None else np.flatnonzero(np.isin(person, part)) for part in parts]


def _persons(dataset: Dataset, persons: NDArray[np.bytes_], column: str) -> tuple[Dataset, Indices]:
    """Return a data set with one sample for each person, and the (n,) person of each sample as an index into it."""
    _, first, person = np.unique(persons, return_index=True, return_inverse=True)
    counts = np.zeros((len(first), len(dataset.class_names)), dtype=np.int64)
    np.add.at(counts, (person, dataset.labels), 1)
    if column in dataset.columns:
        values = dataset.columns[column]
        if divided := len(np.unique(person[values != values[first][person]])):
            raise DatasetError(f"{dataset.name}: {divided} of {len(first)} persons have several values of {column!r}")
    people = dataclasses.replace(
        dataset.subset(first), name=f"persons of {dataset.name}", labels=counts.argmax(axis=1), persons=None
    )
    return people, person


def _by_value(dataset: Dataset, column: str, partitioner: str, num_clients: int, seed: int) -> list[Indices]:
    """Return the sample indices of each distinct value of a column, values in sorted order; of domains divided equally.

    Undivided, it is what flwr-datasets' NaturalIdPartitioner gives (a test compares them), without its loop over
    samples and progress bar.
    """
    if column not in dataset.columns:
        have = sorted(dataset.columns)
        raise DatasetError(
            f"{dataset.name}: the partitioner {partitioner} needs a column of the data set, "
            f"{f'one of {have}' if have else 'and this one has none'}, got {column!r}"
        )
    values = dataset.columns[column]
    gaps = sum(value is None for value in values.tolist())
    if gaps:
        raise DatasetError(f"{dataset.name}: {gaps} of {len(values)} samples have no {column!r}; leave them out")
    _, first_of_group = np.unique(values[order := np.argsort(values, kind="stable")], return_index=True)
    groups = np.split(order.astype(np.int64), first_of_group[1:])
    number, natural = len(groups), partitioner == "natural-id"
    if num_clients % number or (natural and num_clients not in (0, number)):
        allowed = f"{number} or 0" if natural else f"a multiple of {number}, or 0 for one each"
        raise DatasetError(
            f"{dataset.name}: the column {column!r} has {number} values, so with {partitioner} num-clients must be "
            f"{allowed}, got {num_clients}"
        )
    if natural:
        return groups
    rng, each = np.random.default_rng(seed), max(num_clients // number, 1)
    return [part for group in groups for part in np.array_split(rng.permutation(group), each)]


def _dirichlet(labels: Indices, num_clients: int, alpha: float, seed: int, *, shuffled: bool) -> list[Indices]:
    """Divide each class over the clients by a draw of Dirichlet(alpha).

    The shares are those of flwr-datasets' DirichletPartitioner with this seed (a test compares them). It cuts a class
    of n samples at floor(n c_k), c_k the cumulated shares, so the last sample of every class goes to the last client,
    and a client's chances of a class grow with its place: with 196 classes of 20 samples and 100 clients the first has
    11 classes on average, the last 192. Cut at floor(n c_k + u) with u uniform in [0, 1), one for each class, every
    client gets its share n p_k rounded up or down, and n p_k in expectation (systematic sampling). Unshuffled,
    copies of one image that lie beside each other come to one client, whose means then look surer than they are.
    """
    rng = np.random.default_rng(seed)
    classes = [np.flatnonzero(labels == class_id) for class_id in np.unique(labels)]
    shares = rng.dirichlet(np.full(num_clients, alpha), len(classes))  # (classes, K)
    offsets = rng.random(len(classes))
    pieces: list[list[Indices]] = [[] for _ in range(num_clients)]
    for samples, of_class, offset in zip(classes, shares, offsets, strict=True):
        if shuffled:
            samples = rng.permutation(samples)
        cuts = np.floor(len(samples) * np.cumsum(of_class)[:-1] + offset).astype(np.int64)
        for client, piece in zip(pieces, np.split(samples, cuts), strict=True):
            client.append(piece)
    return [np.concatenate(client) for client in pieces]


def _pathological(dataset: Dataset, num_clients: int, classes_per_client: int, seed: int) -> list[Indices]:
    """Split a table of labels and indices only, which needs no hub and no images."""
    from flwr_datasets.partitioner import PathologicalPartitioner

    split = PathologicalPartitioner(
        num_clients, "label", classes_per_client, class_assignment_mode="first-deterministic", seed=seed
    )
    try:
        return _parts_of(split, {"label": dataset.labels, _INDEX: np.arange(len(dataset))})
    except ValueError as error:
        raise DatasetError(f"{dataset.name}: the partitioner pathological finds no split: {error}") from error


def _parts_of(split: Any, columns: dict[str, Any]) -> list[Indices]:
    """Return the parts that a partitioner of flwr-datasets makes of a table."""
    import datasets

    split.dataset = datasets.Dataset.from_dict(columns)
    return [np.asarray(split.load_partition(k)[_INDEX][:], dtype=np.int64) for k in range(split.num_partitions)]


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Return the class's name and its keyword arguments.

    Raises
    ------
    ValueError
        If the text is not a call with literals as keyword arguments; the message says what it must be.
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError
        call = ast.parse(text.removeprefix(PREFIX), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        arguments = {str(argument.arg): ast.literal_eval(argument.value) for argument in call.keywords if argument.arg}
        if len(arguments) < len(call.keywords):  # **others
            raise ValueError
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError(f"must be {_FORM}, with numbers, text, lists, true or false as values") from None
    return call.func.id, arguments


def flwr_partition(dataset: Dataset, text: str, num_clients: int, seed: int) -> list[Indices]:
    """Split a table of labels, the columns named in `partition_by` and indices, without images.

    Parameters
    ----------
    dataset : Dataset
        Its label column is called ``label`` here.
    text : str
        As :func:`parsed` takes it. Without ``num_partitions`` and ``seed`` in it, those are the arguments below.
    num_clients : int
        What the split must have, 0 for any number.
    seed : int
        Also shuffles the samples first, as flwr-datasets' `FederatedDataset` does.

    Raises
    ------
    DatasetError
        If there is no such class, an argument is wrong, a column is missing, or it makes another number of clients.
    """
    from flwr_datasets import partitioner as library

    name, arguments = parsed(text)
    # The vertical ones divide columns, which a site's samples have all of.
    names = [each for each in library.__all__ if each != "Partitioner" and not each.startswith("Vertical")]
    if name not in names:
        raise DatasetError(
            f"{PREFIX}{name}: no such partitioner of samples in flwr-datasets; there are {', '.join(names)}"
        )
    kind = getattr(library, name)
    taken = inspect.signature(kind).parameters
    given = {"num_partitions": num_clients or usual_number(dataset), "seed": seed}
    # An array can only be written as a list of lists.
    written = {
        key: np.array(value) if isinstance(value, list) and {*map(type, value)} == {list} else value
        for key, value in arguments.items()
    }
    order = np.random.default_rng(seed).permutation(len(dataset))
    columns: dict[str, Any] = {"label": dataset.labels[order], _INDEX: order}
    by = arguments.get("partition_by", [])
    for column in [by] if isinstance(by, str) else by:
        if column not in ("label", *dataset.columns):
            there = ", ".join(["label", *dataset.columns])
            raise DatasetError(f"{dataset.name}: partition_by: no such column: {column!r}; there are {there}")
        if column != "label":
            columns[column] = dataset.columns[column][order]
    try:
        parts = _parts_of(kind(**{**{key: value for key, value in given.items() if key in taken}, **written}), columns)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DatasetError(f"{dataset.name}: {PREFIX}{name} finds no split: {error}") from error
    if num_clients not in (0, len(parts)):
        raise DatasetError(f"{dataset.name}: {PREFIX}{name} makes {len(parts)} clients, num-clients is {num_clients}")
    return parts
