"""What a client does with ``train.mezo`` and ``evaluate.mezo``: bring its replica up to date, measure, answer."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Context, Message
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.node import configs, feature_reader
from fedstats_app.client.training import prepare_samples
from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.mezo_model import build_model, make_replica
from fedstats_app.mezo_state import MezoState, forget_old
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, SelectedSamples, batch_order
from fedstats_app.training.zeroth_order.curvature import curvatures
from fedstats_app.training.zeroth_order.objective import projected_gradients
from fedstats_app.training.zeroth_order.perturbation import Perturbation
from fedstats_app.training.zeroth_order.perturbed import Probe
from fedstats_app.training.zeroth_order.replica import Replica
from fedstats_app.training.zeroth_order.temperature import losses_by_temperature
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.mezo import CURVATURE_DIRECTIONS, Behind, MezoReply, MezoRequest, mezo_reply, read_mezo_request
from fedstats_app.wire.mezo_setup import MezoSetup, read_setup
from fedstats_app.wire.training import EvaluationCounts, model_evaluation_reply

logger = logging.getLogger("fedstats_app")

# Features per forward pass of a head; images and texts go through the backbone in its own batches.
FEATURE_BATCH = 1024
# Samples of clients that a worker keeps in memory from round to round, in bytes.
SAMPLES_IN_MEMORY = 2**30
# Rounds between snapshots of a replica that simulated clients share: from the newest a new worker process goes on.
SNAPSHOT_EVERY = 20


@dataclass
class _Held:
    """A training that this process is in the midst of."""

    state: MezoState
    setup: MezoSetup
    reader: FeatureReader
    model: TunedModel
    replica: Replica
    perturbation: Perturbation
    own_data: bool
    digest: tuple[int, bytes] = (-1, b"")

    def current_digest(self) -> bytes:
        """Return the replica's digest, computed once a round."""
        if self.digest[0] != self.replica.round:
            self.digest = self.replica.round, self.replica.digest()
        return self.digest[1]


# One training at a time: in deployment the process ends with the message, in a simulation runs follow one another.
_held: dict[MezoState, _Held] = {}
_samples: OrderedDict[tuple[MezoState, int | None], tuple[Samples, int, int]] = OrderedDict()


def mezo(msg: Message, context: Context, client_id: int | None) -> Message:
    """Follow the log to the round that is asked for and measure the loss's difference quotients there."""
    config, node = configs(context)
    request, held = _follow(msg, context, config, node, client_id)
    if isinstance(held, Behind):
        return mezo_reply(msg, held)
    if request.wanted == "sync":
        answer = mezo_reply(msg, MezoReply((), 0, held.current_digest()))
        if held.own_data:
            # The model is the server's to give from here on; whoever needs the replica again gets the log.
            held.state.forget()
        return answer
    samples, partition = _training_samples(held, config, node, client_id)
    num_examples = len(samples.labels)
    if not num_examples:
        return mezo_reply(msg, MezoReply((), 0, held.current_digest()))
    _check_perturbation(held, samples)
    scalars = _scalars(held, request, samples, partition)
    return mezo_reply(msg, MezoReply(scalars, num_examples, held.current_digest()))


def evaluate_mezo(msg: Message, context: Context, client_id: int | None) -> Message:
    """Follow the log and score the replica on the samples that the client kept for evaluation."""
    config, node = configs(context)
    _, held = _follow(msg, context, config, node, client_id)
    if isinstance(held, Behind):
        raise RejectedRequest(f"this node's replica is behind: it knows round {held.round}")
    request = held.setup.request
    _, samples, _ = prepare_samples(request, config, node, client_id, held_out=True)
    if not len(samples.labels):
        return model_evaluation_reply(msg, EvaluationCounts())
    result = evaluate(held.model, samples, request.num_classes, batch_size=_batch_size(held))
    correct = int(result.confusion.matrix.diagonal().sum())
    return model_evaluation_reply(msg, EvaluationCounts(result.confusion.num_examples, correct, result.loss_sum))


# The replica


def _follow(
    msg: Message, context: Context, config: AppConfig, node: NodeConfig, client_id: int | None
) -> tuple[MezoRequest, _Held | Behind]:
    """Return what is asked and the training with its replica at the round that is asked for, or what is known of it."""
    request = read_mezo_request(msg)
    root = node.state_root(config.cache)
    # Flower may draw a node's id anew when it comes back, so its data say which node it is.
    owner = hashlib.sha256(node.data_path.encode()).hexdigest()[:16] if node.data_path else "shared"
    state = MezoState.of(root, context.run_id, request.training, owner)
    held = _held.get(state)
    # A replica is also made anew where the server goes on from an earlier round, or has changed the setup.
    fresh = request.restart or (held is not None and _is_of_another_start(held, request))
    if held is None or (fresh and request.setup is not None):
        held = _begin(request, state, config, node, fresh=fresh)
        if held is None:
            return request, Behind(-1)
    last = _catch_up(held, request)
    return request, held if last is None else Behind(last)


def _begin(request: MezoRequest, state: MezoState, config: AppConfig, node: NodeConfig, *, fresh: bool) -> _Held | None:
    """Build the replica from what the request brings or from what is kept, or return None where neither is there."""
    kept = state.load_start()
    if request.setup is not None:
        setup, start = request.setup, dict(request.start)
        if fresh or kept is None or not _is_same_start(kept, (dict(setup.to_config()), start)):
            state.save_start(dict(setup.to_config()), start)
    elif kept is not None:
        setup, start = read_setup(kept[0]), kept[1]
    else:
        return None
    if not node.data_path:
        forget_old(state.folder.parent)
    reader = feature_reader(config, node, setup.request.backbone_fingerprint)
    held = _build(state, setup, start, reader, own_data=bool(node.data_path))
    if not fresh and not state.load_replica(held.replica, before=request.round) and held.replica.round:
        held = _build(state, setup, start, reader, own_data=bool(node.data_path))
    _held.clear()
    _held[state] = held
    for key in [key for key in _samples if key[0] != state]:
        del _samples[key]
    return held


def _is_of_another_start(held: _Held, request: MezoRequest) -> bool:
    if request.setup is None:
        return held.replica.round >= request.round
    kept = held.state.load_start()
    same = kept is not None and _is_same_start(kept, (dict(request.setup.to_config()), dict(request.start)))
    return not same or held.replica.round >= request.round


def _is_same_start(
    one: tuple[dict[str, Any], dict[str, Tensor]], other: tuple[dict[str, Any], dict[str, Tensor]]
) -> bool:
    return (
        one[0] == other[0]
        and one[1].keys() == other[1].keys()
        and all(torch.equal(tensor, other[1][name]) for name, tensor in one[1].items())
    )


def _build(
    state: MezoState, setup: MezoSetup, start: dict[str, Tensor], reader: FeatureReader, *, own_data: bool
) -> _Held:
    try:
        model = build_model(setup, start, reader.backbone)
        replica = make_replica(setup, model)
    except ValueError as error:
        raise RejectedRequest(f"the model does not fit: {error}") from error
    perturbation = Perturbation(model, tuple(replica.parameters), how=state.how)
    return _Held(state, setup, reader, model, replica, perturbation, own_data)


def _catch_up(held: _Held, request: MezoRequest) -> int | None:
    """Bring the replica to the round before the one that is asked for; if it cannot be, return the last known round."""
    replica, state, target = held.replica, held.state, request.round - 1
    before, updates = replica.round, list(request.updates)
    if replica.round > target:
        return -1
    if request.coefficients is not None:
        replica.load_coefficients(request.coefficients, target)
    else:
        first = target - len(updates)  # the round before those that came with the request
        if replica.round < first:
            log = state.load_log(held.setup.num_directions)
            if len(log) < first:
                return max(replica.round, len(log))
            replica.apply(log[replica.round : first])
        replica.apply(updates[replica.round - first :])
        state.extend_log(updates, first + 1)
    if replica.round != before and (held.own_data or replica.round % SNAPSHOT_EVERY == 0):
        state.save_replica(replica)
    return None


# The measurement


def _scalars(held: _Held, request: MezoRequest, samples: Samples, partition: int) -> tuple[float, ...]:
    batch = _batch_size(held)
    if request.wanted == "temperature":
        return losses_by_temperature(held.model, samples, batch)
    if request.wanted == "curvature":
        directions = held.replica.directions
        probes = [Probe(request.seed, i, held.setup.epsilon, directions) for i in range(CURVATURE_DIRECTIONS)]
        return curvatures(held.perturbation, samples, batch, probes)
    size = held.setup.batch_size
    if size and size < len(samples.labels):
        key = (held.setup.request.seed, partition, request.round)
        samples = SelectedSamples(samples, batch_order(len(samples.labels), size, key, 0)[0])
    return projected_gradients(held.perturbation, samples, batch, held.replica.probes(request.seed))


def _batch_size(held: _Held) -> int:
    return FEATURE_BATCH if held.setup.tuned == "head" else held.reader.backbone.batch_size


def _check_perturbation(held: _Held, samples: Samples) -> None:
    """Compare once what the model gives at perturbed parameters with what it gives on a perturbed copy of it."""
    if held.state.how != "auto":
        return
    complaint = held.perturbation.check(samples.inputs(torch.arange(min(2, len(samples.labels)))))
    if complaint:
        logger.warning("%s", complaint)
    held.state.save_how(held.perturbation.how)


def _training_samples(held: _Held, config: AppConfig, node: NodeConfig, client_id: int | None) -> tuple[Samples, int]:
    """Return a client's samples and its number; a worker that lives on keeps them for the next round."""
    key = (held.state, client_id)
    if key not in _samples:
        _, samples, partition = prepare_samples(held.setup.request, config, node, client_id, held_out=False)
        size = len(samples.labels)
        one = samples.inputs(torch.zeros(min(1, size), dtype=torch.int64))
        _samples[key] = (samples, partition, size * one.numel() * one.element_size())
        while sum(entry[2] for entry in _samples.values()) > SAMPLES_IN_MEMORY and len(_samples) > 1:
            _samples.popitem(last=False)
    _samples.move_to_end(key)
    return _samples[key][:2]
