"""The ClientApp: one short handler per kind of message. It does no mathematics."""

from __future__ import annotations

import fedstats_app.threads  # noqa: F401  # first: it must come before torch

# isort: split

import logging
import time
from collections.abc import Callable

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstats_app import client_training
from fedstats_app.client_data import client_split, listed_classes, node_policy
from fedstats_app.client_evaluation import evaluate_heads
from fedstats_app.config import TRAINING, AppConfig, NodeConfig
from fedstats_app.node import configs, feature_reader
from fedstats_app.privacy import statistics_above_floor
from fedstats_app.wire import (
    NodeInfo,
    evaluation_reply,
    guard,
    node_info_reply,
    per_client,
    read_evaluation_request,
    read_statistics_request,
    statistics_reply,
)

logger = logging.getLogger("fedstats_app")


def owners_policy(msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Mod: train nothing on a node whose owner does not allow it, whatever the handler and whoever asks."""
    if msg.metadata.message_type.split(".")[0] == "train":
        node_policy(*configs(context)).check_method(TRAINING)
    return call_next(msg, context)


app = ClientApp(mods=[guard, owners_policy])


@app.query("clients")
def clients(msg: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    node = NodeConfig.from_node_config(context.node_config)
    trains = node.trains and (node.allowed_methods is None or TRAINING in node.allowed_methods)
    if node.data_path:
        config = AppConfig.from_run_config(context.run_config)
        names, ids = listed_classes(config, node)
        return node_info_reply(msg, NodeInfo(class_names=names, class_ids=ids, trains=trains))
    return node_info_reply(msg, NodeInfo(node.partition_id, node.num_partitions, trains=trains))


@app.query("statistics")
@per_client
def statistics(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples once and send their statistics."""
    started = time.perf_counter()
    request = read_statistics_request(msg)
    config, node = configs(context)
    policy = node_policy(config, node)
    policy.check_specifications(request.specs)
    split = client_split(config, node, client_id, request.class_names, holdout=request.holdout, seed=request.seed)
    reader = feature_reader(config, node, request.backbone_fingerprint)
    collected = statistics_above_floor(
        policy,
        request.specs,
        torch.from_numpy(split.dataset.labels[split.kept]),
        lambda positions: reader.blocks(split.dataset, split.kept[positions.numpy()]),
        num_classes=request.num_classes,
        feature_dim=reader.backbone.feature_dim,
        seed=request.seed,
        device=reader.backbone.device,
    )
    suppressed = {*split.suppressed, *(split.dataset.class_names[c] for c in collected.suppressed)}
    if suppressed:
        logger.info("fewer than %d samples, so they do not leave: %s", policy.min_class_count, sorted(suppressed))
    return statistics_reply(
        msg,
        collected.statistics,
        backbone_fingerprint=reader.backbone.fingerprint,
        num_unreadable=reader.num_unreadable,
        num_suppressed_classes=len(suppressed),
        seconds=time.perf_counter() - started,
    )


@app.evaluate("heads")
@per_client
def evaluate(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score heads on the samples that the client kept for evaluation."""
    request, heads = read_evaluation_request(msg)
    config, node = configs(context)
    floor = node_policy(config, node).min_class_count
    split = client_split(config, node, client_id, request.class_names, holdout=request.holdout, seed=request.seed)
    reader = feature_reader(config, node, request.backbone_fingerprint)
    confusion, calibration = evaluate_heads(
        reader, split, request, heads, min_class_count=floor, mask_absent=config.mask_absent
    )
    return evaluation_reply(msg, confusion, calibration)


@app.train()
@per_client
def train(msg: Message, context: Context, client_id: int | None) -> Message:
    """Train the model of a round on the client's samples and send what changed."""
    return client_training.train(msg, context, client_id)


@app.evaluate("model")
@per_client
def evaluate_model(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score a model that is being trained on the samples that the client kept for evaluation."""
    return client_training.evaluate_model(msg, context, client_id)
