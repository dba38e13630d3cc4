"""Which of a client's samples may be used: its part of the data, split for evaluation, under its owner's policy."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.data import Dataset
from fedstats_app.data.clients import aligned, hidden_classes, own_dataset, partitions, split_holdout, training_set
from fedstats_app.methods import METHODS
from fedstats_app.privacy import NodePolicy, evaluable

logger = logging.getLogger("fedstats_app")


def node_policy(config: AppConfig, node: NodeConfig) -> NodePolicy:
    """Return the policy of a node's owner, with the floor raised where the run asks for more."""
    allowed = node.allowed_methods
    needs = None if allowed is None else {name: METHODS[name].needs if name in METHODS else None for name in allowed}
    return NodePolicy(node.class_floor(config.federation.min_class_count), node.min_gram_samples, needs)


@dataclass(frozen=True)
class ClientSplit:
    """A client's samples whose class is not under the floor.

    Attributes
    ----------
    dataset : Dataset
        Where they are; its classes are the federation's.
    kept : ndarray
        (n,) indices of those for statistics and training.
    held_out : ndarray
        (h,) indices of those for evaluation.
    suppressed : tuple of str
        Names of the classes that the client has samples of, but too few to use. They stay on the node.
    """

    dataset: Dataset
    kept: NDArray[np.int64]
    held_out: NDArray[np.int64]
    suppressed: tuple[str, ...]


def client_split(
    config: AppConfig,
    node: NodeConfig,
    client_id: int | None,
    class_names: tuple[str, ...],
    *,
    holdout: float,
    seed: int,
) -> ClientSplit:
    """Return the samples of one client that a message may make use of.

    A class counts by what is left of it for statistics after the split; a class under the floor is not evaluated
    either, and no handful of samples is (:func:`fedstats_app.privacy.evaluable`). Samples that cannot be read are still
    among them.

    Parameters
    ----------
    config, node
        Of the run and of the node.
    client_id : int or None
        Partition; None where the node is one client.
    class_names : tuple of str
        The federation's classes, or empty where they are the data set's.
    holdout : float
        Share kept for evaluation.
    seed : int
        Draws which.

    Raises
    ------
    ValueError
        If the node has no such client, or classes that it should not have.
    """
    dataset, indices = client_samples(config, node, client_id, class_names)
    # Flower draws the id of a node with data of its own anew for every run, so it must not decide the split.
    kept, held_out = split_holdout(indices, holdout, seed, None if node.data_path else client_id)
    policy = node_policy(config, node)
    if policy.min_class_count <= 1:
        return ClientSplit(dataset, kept, held_out, ())
    num_classes, labels = len(dataset.class_names), torch.from_numpy(dataset.labels.copy())
    allowed = policy.allowed_classes(labels[kept], num_classes)
    few = {dataset.class_names[label] for label in torch.unique(labels[kept]).tolist() if not allowed[label]}
    if node.data_path:
        own = own_dataset(node.data_path, config.data)
        hidden = np.intersect1d(hidden_classes(own, policy.min_class_count), own.labels)
        few |= {own.class_names[c] for c in hidden}
    kept, held_out = (part[allowed[labels[part]].numpy()] for part in (kept, held_out))
    held_out = held_out[evaluable(labels[held_out], num_classes, policy.min_class_count).numpy()]
    return ClientSplit(dataset, kept, held_out, tuple(sorted(few)))


def client_samples(
    config: AppConfig, node: NodeConfig, client_id: int | None, class_names: tuple[str, ...]
) -> tuple[Dataset, NDArray[np.int64]]:
    """Return the data set and the sample indices of one client.

    Parameters
    ----------
    config, node
        Of the run and of the node.
    client_id : int or None
        Partition; None where the node is one client.
    class_names : tuple of str
        The federation's classes, to which labels are aligned by name; or empty. Samples of classes that a node's floor
        keeps out of them are left out.

    Raises
    ------
    ValueError
        If the node has no such client.
    """
    if node.data_path:
        dataset = own_dataset(node.data_path, config.data)
        if class_names:
            dataset = aligned(dataset, class_names, node.class_floor(config.federation.min_class_count))
        return dataset, np.arange(len(dataset))
    if client_id is None:
        raise ValueError("a node that hosts partitions must be asked for one of them")
    parts = partitions(config.data, config.partition, config.run.seed)
    if not 0 <= client_id < len(parts):
        raise ValueError(f"client must lie in [0, {len(parts)}), got {client_id}")
    dataset = training_set(config.data)
    return dataset.with_class_names(class_names) if class_names else dataset, parts[client_id]
