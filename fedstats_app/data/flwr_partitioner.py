"""The partitioners of flwr-datasets, written as in Python: flwr:ShardPartitioner(partition_by='label', shard_size=50).

The text is parsed, never run: a class of ``flwr_datasets.partitioner`` with literals as keyword arguments.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any

import numpy as np

from fedstats_app.data.dataset import Dataset, DatasetError
from fedstats_app.data.paper_partitions import Indices

PREFIX = "flwr:"
_LONGEST = 10_000  # characters: a node, too, reads the run-config
_INDEX = "index"  # of a sample, a column of the table that a partitioner is given
_FORM = f"{PREFIX}NAME(argument=value, ...), such as {PREFIX}ShardPartitioner(partition_by='label', shard_size=50)"


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
        arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg}
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
    import datasets
    from flwr_datasets import partitioner as library

    name, arguments = parsed(text)
    # The vertical ones divide columns, which a site's samples have all of.
    names = [one for one in library.__all__ if one != "Partitioner" and not one.startswith("Vertical")]
    if name not in names:
        raise DatasetError(
            f"{PREFIX}{name}: no such partitioner of samples in flwr-datasets; there are {', '.join(names)}"
        )
    kind = getattr(library, name)
    taken = inspect.signature(kind).parameters
    if unknown := sorted(arguments.keys() - taken.keys()):
        raise DatasetError(f"{PREFIX}{name} has no argument {unknown[0]!r}; it takes {', '.join(taken)}")
    given = {"num_partitions": num_clients, "seed": seed} if num_clients else {"seed": seed}
    # An array can only be written as a list of lists.
    written = {key: np.array(value) if _is_matrix(value) else value for key, value in arguments.items()}
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
        split = kind(**{**{key: value for key, value in given.items() if key in taken}, **written})
        split.dataset = datasets.Dataset.from_dict(columns)
        number = split.num_partitions
        if num_clients not in (0, number):
            raise ValueError(f"it makes {number} clients, num-clients is {num_clients}")
        return [np.asarray(split.load_partition(k)[_INDEX][:], dtype=np.int64) for k in range(number)]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DatasetError(f"{dataset.name}: {PREFIX}{name} finds no split: {error}") from error


def _is_matrix(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) for row in value)
