"""A node during one message: its configuration, its owner's policy, and the data that may be used."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.backbones.feature_reader import DatasetSamples, FeatureReader
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.progress import Progress
from fedstats_app.client.ledger import Ledger, ledger_of
from fedstats_app.data import Dataset
from fedstats_app.data.clients import aligned, own_dataset, partitions, split_holdout, training_set
from fedstats_app.data.persons import HELD_OUT, at_most_per_person
from fedstats_app.data.subset import flipped, with_mirror_images
from fedstats_app.methods import METHODS
from fedstats_app.privacy import NodePolicy
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.settings.of_message import node_of, run_of
from fedstats_app.training.model import TrainingRequest
from fedstats_app.training.samples import Samples, SelectedSamples, TensorSamples
from fedstats_app.wire import RejectedRequest, StatisticsRequest


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
    keys : ndarray or None
        (n,) S16, by which those for statistics and training are known on a node with data of its own.
    """

    dataset: Dataset
    kept: NDArray[np.int64]
    held_out: NDArray[np.int64]
    suppressed: tuple[str, ...] = ()
    keys: NDArray[np.bytes_] | None = None

    def persons(self, indices: NDArray[np.int64]) -> Tensor | None:
        """Return (m,) int64 persons of (m,) samples, in the order of digests; None if persons are not named."""
        if self.dataset.persons is None:
            return None
        return torch.from_numpy(np.unique(self.dataset.persons[indices], return_inverse=True)[1])

    @property
    def units(self) -> Tensor | None:
        """(n,) int64, what floors count of the samples for statistics: persons, or at a node samples; else None."""
        if self.dataset.persons is None and self.keys is not None:
            return torch.from_numpy(np.unique(self.keys, return_inverse=True)[1])
        return self.persons(self.kept)

    def targets(self, wanted: str, *, held_out: bool = False) -> Tensor | None:
        """Return (n, C) float64 targets of the samples for statistics or for evaluation; None of one class a sample.

        Raises
        ------
        RejectedRequest
            If the samples' targets are of another kind than the one wanted.
        """
        own = self.dataset.targets
        if wanted != ("" if own is None else own.kind):
            has = "one class" if own is None else f"several {own.kind}"
            raise RejectedRequest(f"this node's samples have {has} each, asked for was {wanted or 'one class'}")
        return None if own is None else torch.from_numpy(own.values[self.held_out if held_out else self.kept])


@dataclass(frozen=True)
class Site:
    """One client of a node in a run.

    Attributes
    ----------
    client_id : int or None
        The partition; None where the node is one client.
    run_id : int
        Flower's, of the run.
    """

    config: AppConfig
    node: NodeConfig
    client_id: int | None = None
    run_id: int = field(default=0, compare=False)  # what is drawn for one run is so for another

    @classmethod
    def of(cls, context: Context, client_id: int | None) -> Site:
        """Return the site that a message is for."""
        run, node = run_of(context.run_config), node_of(context.node_config)
        return cls(run, node, client_id, context.run_id)

    @property
    def number(self) -> int:
        """The client in draws; 0 for a node with data of its own, whose id Flower draws anew for every run."""
        return 0 if self.node.data_path or self.client_id is None else self.client_id

    @property
    def floor(self) -> int:
        """Samples that a class must have: the owner's floor, raised if the run asks for more."""
        return self.node.class_floor(self.config.federation.min_class_count)

    @property
    def policy(self) -> NodePolicy:
        """The policy of the node's owner."""
        allowed = self.node.allowed_methods
        needs = (
            None
            if allowed is None
            else {method: METHODS[method].needs if method in METHODS else None for method in allowed}
        )
        return NodePolicy(self.floor, self.node.gram_floor, needs, self.node.request_limits)

    @property
    def ledger(self) -> Ledger | None:
        """Ledger of a node with data of its own; None for a partition."""
        return ledger_of(self.config, self.node)

    def reader(self, fingerprint: str) -> FeatureReader:
        """Return a reader with the backbone that the server asks for, or refuse another before any image is read."""
        node, config = self.node, self.config
        options = config.backbone_for(own_data=bool(node.data_path), weights=node.backbone_weights)
        backbone = loaded_backbone(options, node.engine_root(config.cache))
        if fingerprint and backbone.fingerprint != fingerprint:
            raise RejectedRequest(
                f"this node's backbone {backbone.name} (fingerprint {backbone.fingerprint[:16]}) "
                f"is not the server's, fingerprint {fingerprint[:16]}"
            )
        progress = Progress() if node.data_path else None  # in a log that only the node's owner reads
        return FeatureReader(backbone, node.cache_root(config.cache), 0, progress)

    def check(self, request: StatisticsRequest) -> None:
        """Refuse statistics that the owner does not allow, or too many of them; errors as of :class:`NodePolicy`."""
        self.policy.check_specification(request.spec)
        self.policy.limits.check_size(request.num_classes, self.config.backbone.num_mapped_features)

    def split(self, class_names: tuple[str, ...], *, holdout: float, seed: int) -> ClientSplit:
        """Return the samples of the client that a message may make use of.

        A class counts by what is left of it for statistics after the split; a class under the floor is not evaluated
        either, and no handful of samples is (:meth:`fedstats_app.privacy.NodePolicy.evaluable`). Samples that cannot be
        read are still among them. ``class_names`` are the federation's, or empty where they are the data set's;
        ``holdout`` is the share kept for evaluation, which the seed draws in a partition. A node with data of its own
        keeps one share for good, or for 0 nothing.

        Raises
        ------
        ValueError
            If the node has no such client, or classes that it should not have.
        """
        ledger = self.ledger
        in_use = training_set(self.config.data).fingerprint if ledger is None else ledger.layout().version
        return _split(self, class_names, holdout, seed, in_use)

    def _split(self, class_names: tuple[str, ...], holdout: float, seed: int) -> ClientSplit:
        if (ledger := self.ledger) is not None:
            return self._own_split(ledger, class_names, everything=not holdout)
        dataset, indices = self._partition(class_names)
        kept, held_out = split_holdout(dataset, indices, holdout, seed, self.client_id)
        split = self._above_floor(ClientSplit(dataset, kept, held_out))
        flips = self.config.partition.training_flips
        if flips == "none":
            return split
        kept = flipped(split.kept, len(dataset), flips, self.config.run.seed)
        return replace(split, dataset=with_mirror_images(dataset), kept=kept)

    def _own_split(self, ledger: Ledger, class_names: tuple[str, ...], *, everything: bool) -> ClientSplit:
        """Return the one split that a node with data of its own has, or everything for statistics."""
        own = own_dataset(self.node.data_path, self.node.data_options(self.config.data))
        dataset, indices = aligned(own, class_names, self.floor) if class_names else (own, np.arange(len(own)))
        layout = ledger.layout()
        place = layout.place[indices]
        kept = np.flatnonzero((place == 0) | (everything & (place == HELD_OUT)))
        held_out = np.flatnonzero((place == HELD_OUT) & (not everything))
        split = self._above_floor(ClientSplit(dataset, kept, held_out))
        left = {dataset.class_names[label] for label in np.unique(dataset.labels[split.kept])}
        few = {own.class_names[label] for label in np.unique(own.labels)} - left
        few = few if own.targets is None else set()
        return replace(split, suppressed=tuple(sorted(few)), keys=layout.keys[indices[split.kept]])

    @property
    def given(self) -> int:
        """Samples that one person gives at most to sums with noise; 0 if persons are not named."""
        return self.config.federation.given or (self.node.max_per_person if self.node.person_column else 0)

    def all_samples(self, class_names: tuple[str, ...]) -> tuple[Dataset, NDArray[np.int64]]:
        """Return the client's data and the indices of its samples for sums with noise, whatever their number."""
        if self.node.data_path:
            own = own_dataset(self.node.data_path, self.node.data_options(self.config.data))
            dataset, _ = aligned(own, class_names, len(own) + 1)
            indices = np.arange(len(dataset))
        else:
            dataset, indices = self._partition(class_names)
        if not self.given:
            return dataset, indices
        if dataset.persons is None:
            raise RejectedRequest("dp-unit: person needs person-column, which this node's owner does not name")
        return dataset, indices[at_most_per_person(dataset.subset(indices), self.given)]

    def _above_floor(self, split: ClientSplit) -> ClientSplit:
        """Leave out classes that are under the floor, and too few samples to evaluate."""
        if self.floor <= 1:
            return split
        dataset, kept, held_out = split.dataset, split.kept, split.held_out
        policy, num_classes, labels = self.policy, len(dataset.class_names), torch.from_numpy(dataset.labels.copy())
        allowed = policy.allowed_classes(labels[kept], num_classes, split.persons(kept))
        few = {dataset.class_names[label] for label in torch.unique(labels[kept]).tolist() if not allowed[label]}
        kept, held_out = (part[allowed[labels[part]].numpy()] for part in (kept, held_out))
        held_out = held_out[policy.evaluable(labels[held_out], num_classes, split.persons(held_out)).numpy()]
        return ClientSplit(dataset, kept, held_out, tuple(sorted(few)))

    def _partition(self, class_names: tuple[str, ...]) -> tuple[Dataset, NDArray[np.int64]]:
        """Return the run's data set, with the federation's classes, and the client's indices in it."""
        if self.client_id is None:
            raise ValueError("a node that hosts partitions must be asked for one of them")
        parts = partitions(self.config.data, self.config.partition, self.config.run.seed)
        if not 0 <= self.client_id < len(parts):
            raise ValueError(f"client must lie in [0, {len(parts)}), got {self.client_id}")
        dataset = training_set(self.config.data)
        return dataset.with_class_names(class_names) if class_names else dataset, parts[self.client_id]

    def split_for(self, request: TrainingRequest) -> ClientSplit:
        """Return the samples for a training, as :meth:`split`, or refuse another number of classes."""
        self.policy.limits.check_size(request.num_classes, self.config.backbone.num_mapped_features)
        split = self.split(request.class_names, holdout=request.holdout, seed=request.seed)
        if (found := len(split.dataset.class_names)) != request.num_classes:
            raise RejectedRequest(f"this node's data has {found} classes, the server's model {request.num_classes}")
        return split

    def samples(self, request: TrainingRequest, *, held_out: bool) -> tuple[FeatureReader, Samples]:
        """Return the backbone that is asked for, and the client's samples for training or for evaluation."""
        split, reader = self.split_for(request), self.reader(request.backbone_fingerprint)

        def read() -> Samples:
            return self._read(request, split, reader, held_out=held_out)

        if self.node.data_path:  # each message is a new process there, and files may have gone since the last
            return reader, read()
        from fedstats_app.client.kept_samples import SAMPLES  # for trainings alone

        data = split.dataset.fingerprint, self.client_id, held_out, request.class_names, request.holdout, request.seed
        client = (*data, request.tune, reader.backbone.fingerprint)
        return reader, SAMPLES.get((self.config, self.node.without_partition()), client, read)

    def _read(self, request: TrainingRequest, split: ClientSplit, reader: FeatureReader, *, held_out: bool) -> Samples:
        indices = split.held_out if held_out else split.kept
        samples = samples_of(request, reader, split.dataset, indices)
        if len(samples.labels) < len(indices) and self.floor > 1:
            # Images that cannot be read may have left a class under its owner's floor, or a handful to evaluate: then
            # it does not train either, and they are not evaluated.
            policy, labels, num_classes = self.policy, samples.labels, request.num_classes
            if held_out:
                allowed = policy.evaluable(labels, num_classes)
            else:
                # As in the statistics: the server compares their numbers.
                allowed = policy.allowed_classes(labels, num_classes)[labels]
            samples = SelectedSamples(samples, allowed.nonzero().squeeze(1))
        return samples


@functools.lru_cache(maxsize=8)
def _split(site: Site, class_names: tuple[str, ...], holdout: float, seed: int, in_use: str) -> ClientSplit:
    """Make the split of the samples in use once: a node is asked in every round, to train and to evaluate."""
    return site._split(class_names, holdout, seed)


def samples_of(
    request: TrainingRequest, reader: FeatureReader, dataset: Dataset, indices: NDArray[np.int64]
) -> Samples:
    """Return those samples that can be read as the model takes them: images or tokens, or for a probe features."""
    if request.tune != "probe":
        return DatasetSamples(dataset, indices, reader.backbone)
    features, positions = [torch.empty(0, reader.backbone.feature_dim)], [torch.empty(0, dtype=torch.int64)]
    for block, found in reader.blocks(dataset, indices):
        features.append(block.cpu())
        positions.append(found)
    labels = np.array(dataset.labels[indices[torch.cat(positions).numpy()]], dtype=np.int64)
    return TensorSamples(torch.cat(features), torch.from_numpy(labels))
