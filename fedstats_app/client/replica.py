"""FedMeZO on a node: its state from message to message, and its answers.

In a simulation worker processes live on: the replica is in memory and shared by all clients of a worker. The files hold
start and log and are shared by the workers, so that a new worker, or one without a client in some rounds, can follow.
On a real SuperNode every message is a new process, and the replica is a file too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, cast

import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from fedstats_app.client.site import Site
from fedstats_app.client.training import FEATURE_BATCH, scored
from fedstats_app.fedmezo.directions import Probe
from fedstats_app.fedmezo.log import TrainingFiles, Update
from fedstats_app.fedmezo.perturbation import Perturbation, check_reading, curvatures, projected_gradients
from fedstats_app.fedmezo.replica import Replica
from fedstats_app.fedmezo.setup import MezoSetup, build_model, make_replica
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.settings.of_message import node_of, run_of
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, SelectedSamples, batch_order
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, UNKNOWN, MezoReply, MezoRequest, mezo_reply, read_mezo_request
from fedstats_app.wire.reading import from_values, metrics_reply, to_values

logger = logging.getLogger("fedstats_app")

# Trainings whose files a machine keeps. Files that simulated clients share, or of an interrupted run, stay behind.
KEPT_TRAININGS = 8
PREFIX = "mezo-"

Loaded = TypeVar("Loaded")
# From client and setup to the client's training samples and its number in draws.
SamplesOf = Callable[[int | None, MezoSetup], tuple[Samples, int]]
# From setup and start to the model there and the samples of a forward pass; a ValueError if they do not fit.
ModelOf = Callable[[MezoSetup, Mapping[str, Tensor]], tuple[nn.Module, int]]


def mezo(msg: Message, context: Context, client_id: int | None) -> Message:
    """Follow the log to the requested round and measure the loss's difference quotients there."""
    request, node_replica = _read(msg, context, client_id)
    with node_replica.nothing_kept_if_refused():
        return mezo_reply(msg, node_replica.answer(request, client_id))


def evaluate_mezo(msg: Message, context: Context, client_id: int | None) -> Message:
    """Follow the log and score the replica on the samples that the client kept for evaluation."""
    request, node_replica = _read(msg, context, client_id)
    with node_replica.nothing_kept_if_refused():
        if not node_replica.follow(request):
            raise RejectedRequest("this node's replica is behind")
    site = Site.of(context, client_id)
    _, samples = site.samples(node_replica.setup.request, held_out=True)
    model = cast(TunedModel, node_replica.model)
    return metrics_reply(msg, scored(model, samples, batch_size=node_replica.batch_size))


def _read(msg: Message, context: Context, client_id: int | None) -> tuple[MezoRequest, NodeReplica]:
    """Read a request, and refuse a setup that the owner does not allow before any of it is stored."""
    request = read_mezo_request(msg)
    if request.setup is not None:
        site = Site.of(context, client_id)
        limits = site.policy.limits
        limits.check_mezo(request.setup.num_directions)
        limits.check_size(request.setup.request.num_classes, site.config.backbone.num_mapped_features)
    config, node = run_of(context.run_config), node_of(context.node_config)
    return request, replica_of(config, node.without_partition(), context.run_id, request.training)


@functools.lru_cache(maxsize=1)
def replica_of(config: AppConfig, node: NodeConfig, run_id: int, training: int) -> NodeReplica:
    """Return this process's part in a training; only the latest is held, since simulated runs follow each other."""
    site = Site(config, node)
    # Flower may draw a new id for a node that reconnects, so its data identify it.
    owner = hashlib.sha256(node.data_path.encode()).hexdigest()[:16] if node.data_path else "shared"
    folder = node.state_root(config.cache) / f"{PREFIX}{run_id}-{training}-{owner}"

    def model(setup: MezoSetup, start: Mapping[str, Tensor]) -> tuple[nn.Module, int]:
        backbone = site.reader(setup.request.backbone_fingerprint).backbone
        built = build_model(setup, start, backbone.module, backbone.feature_dim, backbone.device)
        return built, FEATURE_BATCH if setup.tuned == "head" else backbone.batch_size

    def samples(client_id: int | None, setup: MezoSetup) -> tuple[Samples, int]:
        client = Site(config, node, client_id)
        return client.samples(setup.request, held_out=False)[1], client.number

    return NodeReplica(folder, samples, model, shared=not node.data_path)


class NodeReplica:
    """A node's part in one training: start, log and replica, in memory and in files.

    It is LOADED if the replica is in this process, else STORED if a start is in the folder, perhaps with log and
    replica, else NOTHING. Transitions of :meth:`follow`, of which the first that fits is taken:

    =======  ================================================  ============================================  =======
    state    request                                           action                                        becomes
    =======  ================================================  ============================================  =======
    any      brings a start, and asks to restart or brings     build the model, then delete the files and    LOADED
             another start than the known one or is for a      store the start
             round that the loaded replica has passed
    NOTHING  brings no start                                   none                                          NOTHING
    STORED   any other                                         build the model, load the stored replica if   LOADED
                                                               it has not reached the requested round
    LOADED   any other                                         none                                          LOADED
    =======  ================================================  ============================================  =======

    A loaded replica then applies the updates that it lacks, from the log and the request. It cannot if it has passed
    the requested round, or rounds between log and request are missing: then the server asks to restart.

    Parameters
    ----------
    folder : Path
        Of the training's files, beside those of other trainings.
    samples, model : callable
        See :data:`SamplesOf` and :data:`ModelOf`.
    shared : bool
        True if several clients, in processes that live on, share the folder. Else the replica is stored after every
        round, and deleted with all other files after the last.
    """

    setup: MezoSetup
    model: nn.Module
    replica: Replica
    batch_size: int
    _start: Mapping[str, Tensor]
    _perturbation: Perturbation

    def __init__(self, folder: Path, samples: SamplesOf, model: ModelOf, *, shared: bool) -> None:
        self._files, self._samples, self._model, self._shared = TrainingFiles(folder), samples, model, shared
        self._loaded = self._checked = False
        self._log: list[Update] = []

    @contextlib.contextmanager
    def nothing_kept_if_refused(self) -> Iterator[None]:
        """Delete the files of a training that begins in this block and fails, on a node with data of its own."""
        known = self._files.folder.exists()
        try:
            yield
        except Exception:
            if not self._shared and not known:
                self._forget()
            raise

    def follow(self, request: MezoRequest) -> bool:
        """Bring the replica to the round before the requested one; return whether it could be."""
        loaded, (setup, start) = self._loaded, self._known()
        if request.setup is not None and (
            request.restart
            or (loaded and self.replica.round >= request.round)
            or request.setup != setup
            or request.start.keys() != start.keys()
            or not all(torch.equal(tensor, start[name]) for name, tensor in request.start.items())
        ):
            self._build(request.setup, request.start)
            self._files.save_start(to_values(request.setup), request.start)
            _forget_old(self._files.folder.parent)
        elif setup is None:
            return False
        elif not loaded:
            self._build(setup, start)
            kept = _unless_damaged(self._files.load_replica, None)
            if kept is not None and kept[1] < request.round:
                _unless_damaged(lambda: self.replica.load(*kept), None)
        return self._catch_up(request)

    def answer(self, request: MezoRequest, client_id: int | None) -> MezoReply:
        """Follow, and return the requested scalars of a client's samples."""
        if not self.follow(request):
            return UNKNOWN
        digest = self.replica.digest()
        if request.wanted == "sync":
            if not self._shared:
                # The training has ended; a later request for the replica comes with the log.
                self._forget()
            return MezoReply((), 0, digest)
        samples, number = self._samples(client_id, self.setup)
        num_examples = len(samples.labels)
        if not num_examples:
            return MezoReply((), 0, digest)
        with self.model.threads(num_examples) if isinstance(self.model, TunedModel) else contextlib.nullcontext():
            return MezoReply(self._measured(request, samples, number), num_examples, digest)

    def _measured(self, request: MezoRequest, samples: Samples, number: int) -> tuple[float, ...]:
        """Return the requested scalars of at least one sample of the client with this number."""
        perturbation, num_examples, size = self._perturbation, len(samples.labels), self.setup.batch_size
        if not self._checked:
            if complaint := check_reading(perturbation, samples.inputs(torch.arange(min(2, num_examples)))):
                logger.warning("%s", complaint)
            self._checked = True
        if request.wanted == "curvature":
            directions, epsilon = self.replica.directions, self.setup.epsilon
            probes = [Probe(request.seed, index, epsilon, directions) for index in range(CURVATURE_DIRECTIONS)]
            return curvatures(perturbation, samples, self.batch_size, probes)
        key, batch, scalars = (self.setup.request.seed, number, request.round), samples, list[float]()
        for probe in self.replica.probes(request.seed):
            if 0 < size < num_examples:
                batch = SelectedSamples(samples, batch_order(num_examples, size, key, probe.index)[0])
            scalars += projected_gradients(perturbation, batch, self.batch_size, [probe])
        return tuple(scalars)

    def _known(self) -> tuple[MezoSetup | None, Mapping[str, Tensor]]:
        """Return setup and start if there are any."""
        if self._loaded:
            return self.setup, self._start
        kept = _unless_damaged(self._files.load_start, None)
        return (None, {}) if kept is None else (from_values(MezoSetup, kept[0]), kept[1])

    def _build(self, setup: MezoSetup, start: Mapping[str, Tensor]) -> None:
        try:
            model, batch_size = self._model(setup, start)
            replica = make_replica(setup, model)
        except ValueError as error:
            raise RejectedRequest(f"the model does not fit: {error}") from error
        self.setup, self._start, self.model, self.replica, self.batch_size = setup, start, model, replica, batch_size
        self._perturbation = Perturbation(model, tuple(replica.parameters))
        self._loaded, self._checked, self._log = True, False, []

    def _catch_up(self, request: MezoRequest) -> bool:
        replica, last = self.replica, request.round - 1
        first = last - len(request.updates)  # the round before those that came with the request
        if len(self._log) < first:
            self._log = _unless_damaged(lambda: self._files.load_log(self.setup.num_directions), [])
        if replica.round > last or len(self._log) < first:
            return False
        self._log = [*self._log[:first], *request.updates]
        if replica.round < last:  # else another client of this process has applied them
            replica.apply(self._log[replica.round :])
            self._files.save_log(self._log)
            if not self._shared:
                self._files.save_replica(replica.state(), last)
        return True

    def _forget(self) -> None:
        shutil.rmtree(self._files.folder, ignore_errors=True)
        self._loaded = False


def _unless_damaged(load: Callable[[], Loaded], otherwise: Loaded) -> Loaded:
    """Load a file whose content can be restored from the log or by the server."""
    try:
        return load()
    except ValueError as error:
        logger.warning("a file cannot be used, so its content is restored: %s", error)
        return otherwise


def _forget_old(root: Path) -> None:
    """Delete all but the newest trainings under a folder."""
    found: list[tuple[float, Path]] = []
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            found.append((folder.stat().st_mtime, folder))
    for _, folder in sorted(found, reverse=True)[KEPT_TRAININGS:]:
        shutil.rmtree(folder, ignore_errors=True)
