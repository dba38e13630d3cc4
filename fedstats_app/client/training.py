"""What a client does with ``train`` and ``evaluate.model``: its samples, the model as sent, local SGD."""

from __future__ import annotations

import time

import torch
from flwr.app import Context, Message

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.site import Site, head_dim
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.training import (
    EvaluationCounts,
    TrainingTask,
    model_evaluation_reply,
    nothing_to_train_reply,
    read_training_task,
    training_reply,
)


def train(msg: Message, context: Context, client_id: int | None) -> Message:
    """Train the model of a round on the client's samples and return what changed."""
    started = time.perf_counter()
    task = read_training_task(msg)
    site = Site.of(context, client_id)
    reader, samples = site.samples(task.request, held_out=False)
    model = received_model(task, reader)
    if not len(samples.labels):
        return nothing_to_train_reply(msg)
    request = task.request
    # All of a client's randomness comes from these three, so that an interrupted run goes on as it would have.
    report = train_locally(model, samples, request.options, key=(request.seed, site.number, task.server_round))
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
    reader, samples = Site.of(context, client_id).samples(task.request, held_out=True)
    model = received_model(task, reader)
    return score(msg, model, samples)


def score(msg: Message, model: TunedModel, samples: Samples, *, batch_size: int = 64) -> Message:
    """Return the reply to a question for a model's scores on samples, of which there may be none."""
    if not len(samples.labels):
        return model_evaluation_reply(msg, EvaluationCounts())
    result = evaluate(model, samples, model.num_classes, batch_size=batch_size)
    correct = int(result.confusion.matrix.diagonal().sum())
    return model_evaluation_reply(msg, EvaluationCounts(result.confusion.num_examples, correct, result.loss_sum))


def received_model(task: TrainingTask, reader: FeatureReader) -> TunedModel:
    """Return the model that the server sent, on the backbone's device.

    Raises
    ------
    RejectedRequest
        If it does not fit this node's backbone.
    """
    request, tensors = task.request, {**task.fixed, **task.trained}
    dim = head_dim(request, reader.backbone)
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
