"""The ClientApp: one short handler per kind of message. It does no mathematics."""

from __future__ import annotations

import fedstats_app.threads  # noqa: F401  # first: it must come before torch

# isort: split

import time

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.heads import ConfusionMatrix
from fedstats_app.site import FeatureReader, backbone_for, cache_root, client_samples, own_dataset, split_holdout
from fedstats_app.wire import (
    NodeInfo,
    RejectedRequest,
    StatisticsRequest,
    evaluation_reply,
    guard,
    node_info_reply,
    per_client,
    read_evaluation_request,
    read_statistics_request,
    statistics_reply,
)

app = ClientApp(mods=[guard])


@app.query("clients")
def clients(msg: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    node = NodeConfig.from_node_config(context.node_config)
    if node.data_path:
        config = AppConfig.from_run_config(context.run_config)
        return node_info_reply(msg, NodeInfo(class_names=own_dataset(node, config).class_names))
    return node_info_reply(msg, NodeInfo(node.partition_id, node.num_partitions))


@app.query("statistics")
@per_client
def statistics(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples once and send their statistics."""
    started = time.perf_counter()
    request = read_statistics_request(msg)
    config, node = _configs(context)
    dataset, indices = client_samples(config, node, client_id, request.class_names)
    indices, _ = split_holdout(indices, request.holdout, request.seed, _partition(node, client_id))
    labels = torch.from_numpy(dataset.labels[indices])
    reader = _reader(config, node, request)
    backbone = reader.backbone
    accumulators = [
        spec.accumulator(labels, request.num_classes, backbone.feature_dim, seed=request.seed, device=backbone.device)
        for spec in request.specs
    ]
    for features, positions in reader.blocks(dataset, indices):
        for spec, accumulator in zip(request.specs, accumulators, strict=True):
            accumulator.update(spec.feature_map(features), positions)
    return statistics_reply(
        msg,
        [accumulator.statistics(skipped=reader.num_unreadable) for accumulator in accumulators],
        backbone_fingerprint=backbone.fingerprint,
        num_unreadable=reader.num_unreadable,
        seconds=time.perf_counter() - started,
    )


@app.evaluate("heads")
@per_client
def evaluate(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score heads on the samples that the client kept for evaluation."""
    request, heads = read_evaluation_request(msg)
    config, node = _configs(context)
    dataset, indices = client_samples(config, node, client_id, request.class_names)
    _, held_out = split_holdout(indices, request.holdout, request.seed, _partition(node, client_id))
    labels = torch.from_numpy(dataset.labels[held_out])
    reader = _reader(config, node, request)
    confusion = {name: ConfusionMatrix.zeros(request.num_classes) for name in heads}
    for features, positions in reader.blocks(dataset, held_out):
        for name, (index, head) in heads.items():
            mapped = request.specs[index].feature_map(features.cpu())
            predictions = head.predict(mapped, mask_absent=config.mask_absent)
            confusion[name] += ConfusionMatrix.from_predictions(labels[positions], predictions, request.num_classes)
    return evaluation_reply(msg, confusion)


def _partition(node: NodeConfig, client_id: int | None) -> int | None:
    """Return the partition; None for a node with data of its own, whose id Flower draws anew for every run."""
    return None if node.data_path else client_id


def _configs(context: Context) -> tuple[AppConfig, NodeConfig]:
    return AppConfig.from_run_config(context.run_config), NodeConfig.from_node_config(context.node_config)


def _reader(config: AppConfig, node: NodeConfig, request: StatisticsRequest) -> FeatureReader:
    """Return a reader with the backbone that the server asks for, or refuse before any image is read."""
    backbone = backbone_for(config, own_data=bool(node.data_path), weights=node.backbone_weights)
    if request.backbone_fingerprint and backbone.fingerprint != request.backbone_fingerprint:
        raise RejectedRequest(
            f"this node's backbone {backbone.name} ({backbone.weights_source}, fingerprint "
            f"{backbone.fingerprint[:16]}) is not the server's, fingerprint {request.backbone_fingerprint[:16]}"
        )
    return FeatureReader(backbone, cache_root(config, node))
