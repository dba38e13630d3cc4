"""Answers about personal models: ``train.personalise``, ``train.personal_heads``, ``evaluate.personal``.

Personal models stay on the node. Only the number of the client's test samples that are predicted right leaves.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from flwr.app import Context, Message
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.evaluation import score_heads
from fedstats_app.client.site import Site, samples_of
from fedstats_app.heads import LinearHead
from fedstats_app.heads.personal import choose_mixing, personal_head
from fedstats_app.privacy import NodePolicy
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.local import LocalReport, alignment_loss, train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples
from fedstats_app.training.start import random_head
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.personal import (
    HeadMetrics,
    PersonalMetrics,
    PersonalTask,
    head_scores_reply,
    read_personal_heads_task,
    read_personal_task,
)
from fedstats_app.wire.reading import metrics_reply
from fedstats_app.wire.training import TrainingTask

# Keeps the draw of what is held out to choose a head apart from that of batches.
VALIDATION_STREAM = 0x5E1F


@dataclass(frozen=True)
class _Client:
    """A client's number, samples, backbone and policy."""

    number: int
    training: Samples
    test: Samples
    reader: FeatureReader
    policy: NodePolicy

    @property
    def floor(self) -> int:
        """Classes with fewer readable training samples leave in no form, nor do counts of fewer test samples."""
        return self.policy.min_class_count

    @property
    def above_floor(self) -> Tensor:
        """(n,) bool, the training samples of classes that may leave: those that are in the federation's statistics."""
        labels = self.training.labels
        return torch.bincount(labels)[labels] >= max(self.floor, 1)

    @property
    def num_test(self) -> int:
        """Test samples whose number may leave."""
        return len(self.test.labels) if len(self.test.labels) >= self.floor else 0

    def num_correct(self, model: TunedModel, predictable: Tensor) -> int:
        """Return how many of the test samples a model predicts right."""
        if not self.num_test:
            return 0
        matrix = evaluate(model, self.test, present=predictable).confusion.matrix
        return int(matrix.diagonal().sum())


def personalise(msg: Message, context: Context, client_id: int | None) -> Message:
    """Train a personal model from the head that was sent, and score it."""
    started = time.perf_counter()
    task = read_personal_task(msg)
    client = _client(task.training, context, client_id)
    model = _start_model(task, client)
    report = _train(model, task, client)
    metrics = PersonalMetrics(
        report.num_examples,
        client.num_test,
        client.num_correct(model, task.predictable),
        report.forward_passes,
        time.perf_counter() - started,
    )
    return metrics_reply(msg, metrics)


def personal_heads(msg: Message, context: Context, client_id: int | None) -> Message:
    """Solve a head from the federation's and the client's own statistics, weighed as does best on its own samples."""
    started = time.perf_counter()
    task = read_personal_heads_task(msg)
    client = _client(task.training, context, client_id)
    samples, shared = client.training, task.statistics
    features, labels = samples.inputs(torch.arange(len(samples.labels))), samples.labels
    if features.shape[1] != shared.feature_dim:
        raise RejectedRequest(
            f"statistics: must be of this node's {features.shape[1]} features, got {shared.feature_dim}"
        )
    key, solve = (task.training.request.seed, client.number, VALIDATION_STREAM), task.method.solve_mixture
    mixing = choose_mixing(shared, features, labels, solve, in_global=client.above_floor, key=key, grid=task.grid)
    own = FeatureStatistics.from_features(features, labels, shared.num_classes)
    num_correct = _num_head_correct(personal_head(shared, own, mixing, solve), client)
    seconds = time.perf_counter() - started
    metrics = HeadMetrics(len(labels), client.num_test, num_correct, len(labels), seconds, mixing)
    return metrics_reply(msg, metrics)


def evaluate_personal(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score each of the federation's heads on the client's own test samples."""
    scores = score_heads(msg, context, client_id)
    num_test = max((found.confusion.num_examples for found in scores.values()), default=0)
    num_correct = {name: found.confusion.num_correct for name, found in scores.items()}
    return head_scores_reply(msg, num_test, num_correct)


def _client(task: TrainingTask, context: Context, client_id: int | None) -> _Client:
    request, site = task.request, Site.of(context, client_id)
    split, reader = site.split_for(request), site.reader(request.backbone_fingerprint)
    training, test = (samples_of(request, reader, split.dataset, part) for part in (split.kept, split.held_out))
    return _Client(site.number, training, test, reader, site.policy)


def _start_model(task: PersonalTask, client: _Client) -> TunedModel:
    """Return the model to start from: the node's backbone under the head that was sent, or one drawn by the seed."""
    request, tensors, backbone = task.training.request, task.training.trained, client.reader.backbone
    dim = backbone.feature_dim
    if task.prototypes is not None and task.prototypes.means.shape[1] != dim:
        raise RejectedRequest(f"prototypes: must have {dim} features, got {task.prototypes.means.shape[1]}")
    try:
        head = (
            LinearHead(tensors["head.weight"], tensors["head.bias"])
            if tensors
            else random_head(request.num_classes, dim, request.seed)
        )
        model = TunedModel.of(request, head, backbone.module)
    except (KeyError, ValueError) as error:
        raise RejectedRequest(f"the model does not fit: {type(error).__name__}: {error}") from error
    return model.to(backbone.device)


def _train(model: TunedModel, task: PersonalTask, client: _Client) -> LocalReport:
    """Train a model in place; without samples it stays as it is."""
    client.policy.limits.check_training(task.training.request.options, len(client.training.labels))
    if not len(client.training.labels):
        return LocalReport(0, 0, 0.0, 0)
    prototypes, training = task.prototypes, task.training
    # Without a term there is no call for it: not one bit differs from training that knows nothing of prototypes.
    extra_loss = (
        alignment_loss(prototypes.means, prototypes.present, prototypes.weight)
        if prototypes is not None and prototypes.weight
        else None
    )
    key, options = (training.request.seed, client.number, training.server_round), training.request.options
    return train_locally(model, client.training, options, key=key, extra_loss=extra_loss)


def _num_head_correct(head: LinearHead, client: _Client) -> int:
    if not client.num_test:
        return 0
    features = client.test.inputs(torch.arange(len(client.test.labels)))
    predictions = head.predict(features)
    return int((predictions == client.test.labels).sum())
