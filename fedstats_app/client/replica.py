"""What a node keeps of FedMeZO from message to message, and its answers to ``train.mezo`` and ``evaluate.mezo``.

In a simulation worker processes live on: the replica is in memory and shared by all clients of a worker, and the files,
shared by the workers, hold the start and the log, so that a worker that was not asked in some rounds can follow, and a
new one begins from a snapshot. On a real SuperNode every message is a new process, and the replica is a file too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedstats_app.client.site import Site
from fedstats_app.client.training import FEATURE_BATCH, scored
from fedstats_app.fedmezo.directions import Probe
from fedstats_app.fedmezo.log import NodeFiles
from fedstats_app.fedmezo.perturbation import Perturbation, check_reading, curvatures, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup, build_model, make_replica
from fedstats_app.privacy import NodePolicy
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.settings.of_message import node_of, run_of
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, SelectedSamples, batch_order
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, Behind, MezoReply, MezoRequest, mezo_reply, read_mezo_request
from fedstats_app.wire.reading import from_values, metrics_reply, to_values

logger = logging.getLogger("fedstats_app")

# Rounds between snapshots of a replica that simulated clients share: from the newest a new worker process goes on.
SNAPSHOT_EVERY = 20
# What simulated clients share stays behind when a run ends (no client knows which of them is the last), for so long.
KEPT_SECONDS = 7 * 24 * 3600.0
# A node with data of its own keeps those that it was last asked for.
KEPT_TRAININGS = 8
_PREFIX = "mezo-"
# Samples of clients that a worker keeps in memory from round to round, in bytes.
SAMPLES_IN_MEMORY = 2**30


def mezo(msg: Message, context: Context, client_id: int | None) -> Message:
    """Follow the log to the round that is asked for and measure the loss's difference quotients there."""
    request = read_mezo_request(msg)
    if request.setup is not None:
        _check(Site.of(context, client_id).policy, request.setup)
    node_replica = _node_replica(context, request.training)
    with node_replica.nothing_kept_if_refused():
        return mezo_reply(msg, node_replica.follow(request) or node_replica.answer(request, client_id))


def evaluate_mezo(msg: Message, context: Context, client_id: int | None) -> Message:
    """Follow the log and score the replica on the samples that the client kept for evaluation."""
    request = read_mezo_request(msg)
    node_replica = _node_replica(context, request.training)
    if request.setup is not None:
        _check(Site.of(context, client_id).policy, request.setup)
    with node_replica.nothing_kept_if_refused():
        behind = node_replica.follow(request)
    if behind:
        raise RejectedRequest(f"this node's replica is behind: it knows round {behind.round}")
    samples, batch_size = node_replica.held_out(client_id), node_replica.batch_size
    floor = Site.of(context, client_id).floor
    return metrics_reply(msg, scored(node_replica.model, samples, floor=floor, batch_size=batch_size))


def _check(policy: NodePolicy, setup: MezoSetup) -> None:
    """Refuse a setup that the owner does not allow, before anything of it is kept."""
    policy.limits.check_mezo(setup.num_directions, setup.batch_size)
    policy.limits.check_size(setup.request.num_classes, setup.request.feature_map.output_dim(1))


def _node_replica(context: Context, training: int) -> NodeReplica:
    config, node = run_of(context.run_config), node_of(context.node_config)
    return replica_of(config, node.without_partition(), context.run_id, training)


@functools.lru_cache(maxsize=1)
def replica_of(config: AppConfig, node: NodeConfig, run_id: int, training: int) -> NodeReplica:
    """Return what this process holds of a training, of one at a time: in a simulation runs follow one another."""
    return NodeReplica(Site(config, node), run_id, training)


class ClientSamples:
    """The training samples of the clients of a site that a process has been asked for."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # From client to its samples, its number and the samples' bytes; the one asked last at the end.
        self._kept: OrderedDict[int | None, tuple[Samples, int, int]] = OrderedDict()

    def of(self, client_id: int | None, setup: MezoSetup) -> tuple[Samples, int]:
        """Return a client's samples and its number; a worker that lives on keeps them for the next round."""
        kept = self._kept
        if client_id not in kept:
            site = Site(self._site.config, self._site.node, client_id)
            _, samples = site.samples(setup.request, held_out=False)
            size = len(samples.labels)
            one = samples.inputs(torch.zeros(min(1, size), dtype=torch.int64))
            kept[client_id] = samples, site.number, size * one.numel() * one.element_size()
            while sum(size for *_, size in kept.values()) > SAMPLES_IN_MEMORY and len(kept) > 1:
                kept.popitem(last=False)
        kept.move_to_end(client_id)
        return kept[client_id][:2]


class Measurement:
    """Measures a replica's loss around it; the replica and the model share their parameters."""

    def __init__(self, setup: MezoSetup, model: TunedModel, replica: Replica, batch_size: int) -> None:
        self._setup, self._replica, self._batch_size = setup, replica, batch_size
        self._perturbation, self._checked = Perturbation(model, tuple(replica.parameters)), False

    def __call__(self, request: MezoRequest, samples: Samples, number: int) -> tuple[float, ...]:
        """Return what a request wants of at least one sample of the client with this number."""
        if not self._checked:
            self._check(samples)
        perturbation, batch = self._perturbation, self._batch_size
        if request.wanted == "curvature":
            directions = self._replica.directions
            seeds = [(request.seed, index) for index in range(CURVATURE_DIRECTIONS)]
            return curvatures(
                perturbation, samples, batch, [Probe(*seed, self._setup.epsilon, directions) for seed in seeds]
            )
        probes = self._replica.probes(request.seed)
        if not self._setup.own_batches:
            return projected_gradients(perturbation, self._batch(samples, number, request.round, 0), batch, probes)
        drawn = (self._batch(samples, number, request.round, probe.index) for probe in probes)
        return tuple(
            projected_gradients(perturbation, mine, batch, [probe])[0]
            for mine, probe in zip(drawn, probes, strict=True)
        )

    def _batch(self, samples: Samples, number: int, server_round: int, draw: int) -> Samples:
        """Return one of the round's draws of a mini-batch, or all samples."""
        size = self._setup.batch_size
        if not 0 < size < len(samples.labels):
            return samples
        key = (self._setup.request.seed, number, server_round)
        return SelectedSamples(samples, batch_order(len(samples.labels), size, key, draw)[0])

    def _check(self, samples: Samples) -> None:
        if complaint := check_reading(self._perturbation, samples.inputs(torch.arange(min(2, len(samples.labels))))):
            logger.warning("%s", complaint)
        self._checked = True


class NodeReplica:
    """All that a node keeps of one training: start, log, replica, what is measured around it, samples.

    ``site`` is the node, one for all partitions that it hosts; ``training`` the number of the training in the run.
    """

    setup: MezoSetup
    model: TunedModel
    replica: Replica
    batch_size: int
    _measure: Measurement

    def __init__(self, site: Site, run_id: int, training: int) -> None:
        self._site, self._config, self._node = site, site.config, site.node
        path = site.node.data_path
        # Flower may draw a node's id anew when it comes back, so its data say which node it is.
        owner = hashlib.sha256(path.encode()).hexdigest()[:16] if path else "shared"
        self.files = NodeFiles(site.node.state_root(site.config.cache) / f"{_PREFIX}{run_id}-{training}-{owner}")
        self._begun = False
        self._digest = (-1, b"")
        self._samples = ClientSamples(site)

    @contextlib.contextmanager
    def nothing_kept_if_refused(self) -> Iterator[None]:
        """Delete what a node with data of its own has kept of a training that begins in this block and fails."""
        known = self.files.folder.exists()
        try:
            yield
        except Exception:
            if self._node.data_path and not known:
                shutil.rmtree(self.files.folder, ignore_errors=True)
                replica_of.cache_clear()
            raise

    def follow(self, request: MezoRequest) -> Behind | None:
        """Bring the replica to the round before the one that is asked for; if it cannot be, return what is known."""
        # It is also made anew where the server goes on from an earlier round, or has changed the setup.
        fresh = request.restart or (self._begun and self._is_of_another_start(request))
        if (not self._begun or (fresh and request.setup is not None)) and not self._begin(request, fresh=fresh):
            return Behind(-1)
        return self._catch_up(request)

    def answer(self, request: MezoRequest, client_id: int | None) -> MezoReply:
        """Return what is asked for, measured on a client's samples."""
        if request.wanted == "sync":
            digest = self._current_digest()
            if self._node.data_path:
                # The model is the server's to give from here on; a later request for the replica gets the log.
                shutil.rmtree(self.files.folder, ignore_errors=True)
            return MezoReply((), 0, digest)
        samples, number = self._samples.of(client_id, self.setup)
        num_examples = len(samples.labels)
        self._site.policy.limits.check_mezo(self.setup.num_directions, self.setup.batch_size, num_examples)
        scalars = self._measure(request, samples, number) if num_examples else ()
        return MezoReply(scalars, num_examples, self._current_digest())

    def held_out(self, client_id: int | None) -> Samples:
        """Return the samples that a client kept for evaluation."""
        return Site(self._config, self._node, client_id).samples(self.setup.request, held_out=True)[1]

    def _current_digest(self) -> bytes:
        """Return the replica's digest, computed once a round."""
        if self._digest[0] != self.replica.round:
            self._digest = self.replica.round, self.replica.digest()
        return self._digest[1]

    # The start

    def _is_of_another_start(self, request: MezoRequest) -> bool:
        other = request.setup is not None and not self._is_kept(request.setup, request.start)
        return other or self.replica.round >= request.round

    def _is_kept(self, setup: MezoSetup, start: Mapping[str, Tensor]) -> bool:
        kept = self.files.load_start()
        return (
            kept is not None
            and kept[0] == to_values(setup)
            and kept[1].keys() == start.keys()
            and all(torch.equal(tensor, start[name]) for name, tensor in kept[1].items())
        )

    def _begin(self, request: MezoRequest, *, fresh: bool) -> bool:
        """Build the replica from what the request brings or from what is kept; return whether either is there."""
        if request.setup is not None:
            setup, start = request.setup, dict(request.start)
        elif (kept := self.files.load_start()) is not None:
            setup, start = from_values(MezoSetup, kept[0]), kept[1]
        else:
            return False
        self._build(setup, start)
        # Only what fits is kept, and only then what was kept before is given up for it.
        if request.setup is not None and (fresh or not self._is_kept(setup, start)):
            self.files.save_start(to_values(setup), start)
        _forget_old(self.files.folder.parent, most=KEPT_TRAININGS if self._node.data_path else None)
        if not fresh and not self._load(before=request.round) and self.replica.round:
            self._build(setup, start)
        self._begun = True
        return True

    def _build(self, setup: MezoSetup, start: Mapping[str, Tensor]) -> None:
        module, feature_dim, device, images = self._network(setup)
        try:
            model = build_model(setup, start, module, feature_dim, device)
            replica = make_replica(setup, model)
        except ValueError as error:
            raise RejectedRequest(f"the model does not fit: {error}") from error
        self.setup, self.model, self.replica, self._digest = setup, model, replica, (-1, b"")
        self.batch_size = FEATURE_BATCH if setup.tuned == "head" else images
        self._measure = Measurement(setup, model, replica, self.batch_size)

    def _network(self, setup: MezoSetup) -> tuple[nn.Module, int, torch.device, int]:
        """Return the network below the head, its features' dimension, its device and the images of a batch."""
        backbone = Site(self._config, self._node).reader(setup.request.backbone_fingerprint).backbone
        return backbone.module, backbone.feature_dim, backbone.device, backbone.batch_size

    # The log

    def _load(self, before: int) -> bool:
        """Turn a replica at the start into the one that is kept, and return whether there is a sound and useful one."""
        kept = self.files.load_replica()
        if kept is None or kept[1] >= before:
            return False
        try:
            self.replica.load(*kept[:2])
            if self.replica.digest() != kept[2]:
                raise ValueError("its parameters have another digest")
        except ValueError as error:
            logger.warning("the replica that is kept cannot be used, the log is replayed: %s", error)
            return False
        return True

    def _catch_up(self, request: MezoRequest) -> Behind | None:
        replica, target, updates = self.replica, request.round - 1, list(request.updates)
        before = replica.round
        if before > target:
            return Behind(-1)
        first = target - len(updates)  # the round before those that came with the request
        if before < first:
            log = self.files.load_log(self.setup.num_directions)
            if len(log) < first:
                return Behind(max(before, len(log)))
            replica.apply(log[before:first])
        replica.apply(updates[replica.round - first :])
        if replica.round != before:  # else it was done for another client of the same message
            self.files.extend_log(updates, first + 1)
        if replica.round != before and (self._node.data_path or replica.round % SNAPSHOT_EVERY == 0):
            self.files.save_replica(replica.state(), replica.round, self._current_digest())
        return None


def _forget_old(root: Path, *, most: int | None) -> None:
    """Delete what trainings of long ago have left under a folder, or all but the newest."""
    found: list[tuple[float, Path]] = []
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found.append((folder.stat().st_mtime, folder))
    found.sort(reverse=True)
    for place, (changed, folder) in enumerate(found):
        if time.time() - changed > KEPT_SECONDS if most is None else place >= most:
            shutil.rmtree(folder, ignore_errors=True)
