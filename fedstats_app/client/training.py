"""What a client does with ``train`` and ``evaluate.model``: its samples, the model as sent, local SGD."""

from __future__ import annotations

import time

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.samples import samples_for
from fedstats_app.client.node import configs, feature_reader, partition_of
from fedstats_app.client.split import client_split, node_policy
from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.data import Dataset
from fedstats_app.heads import LinearHead
from fedstats_app.privacy import evaluable
from fedstats_app.training.evaluation import evaluate
from fedstats_app.training.local import train_locally
from fedstats_app.training.model import TunedModel
from fedstats_app.training.samples import Samples, SelectedSamples, TensorSamples
from fedstats_app.wire import RejectedRequest
from fedstats_app.wire.training import (
    EvaluationCounts,
    TrainingRequest,
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
    model, samples, partition = _prepare(task, context, client_id, held_out=False)
    if not len(samples.labels):
        return nothing_to_train_reply(msg)
    request = task.request
    # All of a client's randomness comes from these three, so that an interrupted run goes on as it would have.
    report = train_locally(model, samples, request.options, key=(request.seed, partition, task.server_round))
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
    model, samples, _ = _prepare(task, context, client_id, held_out=True)
    if not len(samples.labels):
        return model_evaluation_reply(msg, EvaluationCounts())
    result = evaluate(model, samples, task.request.num_classes)
    counts = EvaluationCounts(
        result.confusion.num_examples, int(result.confusion.matrix.diagonal().sum()), result.loss_sum
    )
    return model_evaluation_reply(msg, counts)


def _prepare(
    task: TrainingTask, context: Context, client_id: int | None, *, held_out: bool
) -> tuple[TunedModel, Samples, int]:
    """Return the model as sent, the client's samples for training or for evaluation, and its number."""
    reader, samples, partition = prepare_samples(task.request, *configs(context), client_id, held_out=held_out)
    return received_model(task, reader), samples, partition


def prepare_samples(
    request: TrainingRequest, config: AppConfig, node: NodeConfig, client_id: int | None, *, held_out: bool
) -> tuple[FeatureReader, Samples, int]:
    """Return the backbone that is asked for, the client's samples for training or for evaluation, and its number.

    Raises
    ------
    RejectedRequest
        If this node has other classes or another backbone.
    """
    partition = partition_of(node, client_id) or 0
    split = client_split(config, node, client_id, request.class_names, holdout=request.holdout, seed=request.seed)
    dataset = split.dataset
    if len(dataset.class_names) != request.num_classes:
        raise RejectedRequest(
            f"this node's data has {len(dataset.class_names)} classes, the server's model {request.num_classes}"
        )
    reader = feature_reader(config, node, request.backbone_fingerprint)
    samples = training_samples(request, reader, dataset, split.held_out if held_out else split.kept)
    # Images that cannot be read may have left a class under its owner's floor, or a handful to evaluate: then it does
    # not train either, and they are not evaluated.
    policy, labels = node_policy(config, node), samples.labels
    if held_out:
        allowed = evaluable(labels, request.num_classes, policy.min_class_count)
    else:
        allowed = policy.allowed_classes(labels, request.num_classes)[labels]
    if not bool(allowed.all()):
        samples = SelectedSamples(samples, allowed.nonzero().squeeze(1))
    return reader, samples, partition


def received_model(task: TrainingTask, reader: FeatureReader) -> TunedModel:
    """Return the model that the server sent, on the backbone's device.

    Raises
    ------
    RejectedRequest
        If it does not fit this node's backbone.
    """
    request, tensors = task.request, {**task.fixed, **task.trained}
    dim = request.feature_map.output_dim(reader.backbone.feature_dim)
    weight = tensors.get("head.weight")
    if weight is None or tuple(weight.shape) != (request.num_classes, dim):
        got = "none" if weight is None else tuple(weight.shape)
        raise RejectedRequest(f"head.weight: must have shape ({request.num_classes}, {dim}), got {got}")
    bias = tensors.get("head.bias", torch.zeros(request.num_classes))
    backbone = None if request.tune == "probe" else reader.backbone.module
    try:
        model = TunedModel(
            LinearHead(weight, bias),
            backbone=backbone,
            feature_map=None if backbone is None else request.feature_map,
            tune=request.tune,
            tune_bias=request.tune_bias,
            temperature=request.temperature,
            batch_norm=request.batch_norm,
        )
        model.load_trained_state(task.trained)
    except ValueError as error:
        raise RejectedRequest(f"the model does not fit: {error}") from error
    return model.to(reader.backbone.device)


def training_samples(
    request: TrainingRequest, reader: FeatureReader, dataset: Dataset, indices: NDArray[np.int64]
) -> Samples:
    """Return samples as the model takes them: images or tokens, or for a probe the frozen backbone's features."""
    if request.tune != "probe":
        return samples_for(dataset, indices, reader.backbone)
    dim = request.feature_map.output_dim(reader.backbone.feature_dim)
    features, positions = [torch.empty(0, dim)], [torch.empty(0, dtype=torch.int64)]
    for block, found in reader.blocks(dataset, indices):
        features.append(request.feature_map(block).float().cpu())
        positions.append(found)
    chosen = indices[torch.cat(positions).numpy()]
    return TensorSamples(torch.cat(features), torch.from_numpy(np.array(dataset.labels[chosen], dtype=np.int64)))
