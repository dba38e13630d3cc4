"""Answers to ``train``, ``train.losses`` and ``evaluate.model``: its samples, the model as sent, SGD."""

from __future__ import annotations

import time

import torch
from flwr.app import Context, Message

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.site import Site
from fedstats_app.training.evaluation import evaluate, losses_by_temperature
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.reading import metrics_reply
from fedstats_app.wire.training import (
    EvaluationCounts,
    TrainingTask,
    losses_reply,
    nothing_to_train_reply,
    read_training_task,
    training_reply,
)

# Features per forward pass of a head; images and texts go through the backbone in its own batches.
FEATURE_BATCH = 1024


def train(msg: Message, context: Context, client_id: int | None) -> Message:
    """Train the model of a round on the client's samples and return what changed."""
    started = time.perf_counter()
    task = read_training_task(msg)
    site = Site.of(context, client_id)
    limits, options = site.policy.limits, task.request.options
    limits.check_training(options, 0)
    reader, samples = site.samples(task.request, held_out=False)
    limits.check_training(options, len(samples.labels))
    model = received_model(task, reader)
    if not len(samples.labels):
        return nothing_to_train_reply(msg)
    # All of a client's randomness comes from these three, so that an interrupted run goes on as it would have.
    key = (task.request.seed, site.number, task.server_round)
    with model.threads(len(samples.labels)):
        report = train_locally(model, samples, options, key=key)
    return training_reply(
        msg,
        model.trained_state(),
        num_examples=report.num_examples,
        loss=report.loss,
        seconds=time.perf_counter() - started,
    )


def evaluate_model(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score the model of a round on the samples that the client kept for evaluation."""
    task = read_training_task(msg)
    site = Site.of(context, client_id)
    reader, samples = site.samples(task.request, held_out=True)
    model = received_model(task, reader)
    return metrics_reply(msg, scored(model, samples))


def losses(msg: Message, context: Context, client_id: int | None) -> Message:
    """Say how large a head's loss on the training samples is at each of some temperatures."""
    task = read_training_task(msg)
    site = Site.of(context, client_id)
    reader, samples = site.samples(task.request, held_out=False)
    model, number = received_model(task, reader), len(samples.labels)
    if not number:
        return nothing_to_train_reply(msg)
    with model.threads(number):
        return losses_reply(msg, losses_by_temperature(model, samples, FEATURE_BATCH), number)


def scored(model: TunedModel, samples: Samples, *, batch_size: int = 64) -> EvaluationCounts:
    """Return a model's scores on samples, of which there may be none."""
    if not len(samples.labels):
        return EvaluationCounts()
    with model.threads(len(samples.labels)):
        found = evaluate(model, samples, batch_size=batch_size)
    return EvaluationCounts(found.confusion.num_examples, found.confusion.num_correct, found.loss_sum)


def received_model(task: TrainingTask, reader: FeatureReader) -> TunedModel:
    """Return the model that the server sent, on the backbone's device.

    Raises
    ------
    RejectedRequest
        If it does not fit this node's backbone.
    """
    request, tensors = task.request, {**task.fixed, **task.trained}
    dim = reader.backbone.feature_dim
    weight = tensors.get("head.weight")
    if weight is None or tuple(weight.shape) != (request.num_classes, dim):
        got = "none" if weight is None else tuple(weight.shape)
        raise RejectedRequest(f"head.weight: must have shape ({request.num_classes}, {dim}), got {got}")
    bias = tensors.get("head.bias", torch.zeros(request.num_classes))
    try:
        model = TunedModel.of(request, (weight, bias), reader.backbone.module)
        model.load_trained_state(task.trained)
    except ValueError as error:
        raise RejectedRequest(f"the model does not fit: {error}") from error
    return model.to(reader.backbone.device)
