"""Answer to ``query.statistics``: one pass of the frozen backbone, and sums of its features."""

from __future__ import annotations

import logging
import time

import torch
from flwr.app import Context, Message

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.site import Site
from fedstats_app.privacy import statistics_above_floor
from fedstats_app.wire.statistics import StatisticsRequest, read_statistics_request, statistics_reply

logger = logging.getLogger("fedstats_app")


def statistics(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples once and return their statistics.

    A node with data of its own gives the answer again that it gave to the same question before.
    """
    request = read_statistics_request(msg)
    site = Site.of(context, client_id)
    site.check(request)
    reader = site.reader(request.backbone_fingerprint)
    if (ledger := site.ledger) is None:
        return _answer(msg, request, site, reader)
    rules = (site.policy, site.node.class_floor(0))
    content = ledger.answered(
        request, reader.backbone.fingerprint, rules, lambda: _answer(msg, request, site, reader).content
    )
    return Message(content, reply_to=msg)


def _answer(msg: Message, request: StatisticsRequest, site: Site, reader: FeatureReader) -> Message:
    started, policy = time.perf_counter(), site.policy
    split = site.split(request.class_names, holdout=request.holdout, seed=request.seed)
    collected = statistics_above_floor(
        policy,
        request.spec,
        torch.from_numpy(split.dataset.labels[split.kept]),
        lambda positions: reader.blocks(split.dataset, split.kept[positions.numpy()]),
        num_classes=request.num_classes,
        feature_dim=reader.backbone.feature_dim,
        seed=request.seed,
        device=reader.backbone.device,
        cells=split.cells,
        expanded=reader.backbone.expands_features,
    )
    suppressed = {*split.suppressed, *(split.dataset.class_names[c] for c in collected.suppressed)}
    if suppressed:
        logger.info("fewer than %d samples, so they do not leave: %s", policy.min_class_count, sorted(suppressed))
    return statistics_reply(
        msg,
        collected.statistics,
        backbone_fingerprint=reader.backbone.fingerprint,
        engine=reader.backbone.engine,
        num_unreadable=reader.num_unreadable,
        num_suppressed_classes=len(suppressed),
        seconds=time.perf_counter() - started,
        request=request,
    )
