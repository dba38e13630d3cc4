"""Answer to ``query.statistics``: one pass of the frozen backbone, and sums of its features.

On a node with data of its own the answer is a release: a file made at the first question about these samples, with
these statistics, for this network.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.base.threads import threads_worth
from fedstats_app.client.ledger import DataWait, Ledger, digest_of_keys
from fedstats_app.client.site import ClientSplit, Site
from fedstats_app.data.clients import own_dataset
from fedstats_app.data.differences import ReleasedSet, sets_of_targets
from fedstats_app.data.persons import WAITS
from fedstats_app.privacy import StatisticsAboveFloor, statistics_above_floor
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from fedstats_app.wire import QUERY_STATISTICS, NodeInfo, RejectedRequest
from fedstats_app.wire.release import read_release, write_release
from fedstats_app.wire.statistics import StatisticsRequest, read_statistics_request, statistics_reply

# In place of a class, where samples have several labels or numbers.
_EVERY_SAMPLE = "all samples"

logger = logging.getLogger("fedstats_app")


def statistics(msg: Message, context: Context, client_id: int | None) -> Message:
    """Return a client's statistics; a node with data of its own answers from a release."""
    request = _read_once(msg)
    site = Site.of(context, client_id)
    site.check(request)
    reader, started = site.reader(request.backbone_fingerprint), time.perf_counter()
    split = site.split(request.class_names, holdout=request.holdout, seed=request.seed)
    if (ledger := site.ledger) is not None:
        return Message(_released(ledger, site, reader, split, request), reply_to=msg)
    labels = torch.from_numpy(split.dataset.labels[split.kept])
    collected = _collected(site, reader, split, request, labels, request.num_classes)
    named = {split.dataset.class_names[c] for c in collected.suppressed}
    # The network, above, has work for all threads however few the samples.
    with threads_worth(len(labels) * reader.backbone.feature_dim):
        return _reply(msg, request, site, reader, {*split.suppressed, *named}, collected.statistics, started)


@functools.lru_cache(maxsize=1)
def _read_once(msg: Message) -> StatisticsRequest:
    """Read the request of a message for its first client; all others share it."""
    return read_statistics_request(msg)


def _collected(
    site: Site, reader: FeatureReader, split: ClientSplit, request: StatisticsRequest, labels: Tensor, num_classes: int
) -> StatisticsAboveFloor:
    return statistics_above_floor(
        site.policy,
        request.spec,
        labels,
        lambda positions: reader.blocks(split.dataset, split.kept[positions.numpy()]),
        num_classes=num_classes,
        feature_dim=reader.backbone.feature_dim,
        seed=request.seed,
        device=reader.backbone.device,
        persons=split.units,
        expanded=reader.backbone.expands_features,
        targets=split.targets(request.spec.targets),
    )


def _reply(
    msg: Message,
    request: StatisticsRequest,
    site: Site,
    reader: FeatureReader,
    suppressed: set[str],
    statistics: ClientStatistics,
    started: float,
) -> Message:
    if suppressed:
        few = site.policy.min_class_count
        logger.info("fewer than %d samples, so they do not leave: %s", few, sorted(suppressed))
    return statistics_reply(
        msg,
        statistics,
        backbone_fingerprint=reader.backbone.fingerprint,
        engine=reader.backbone.engine,
        num_unreadable=reader.num_unreadable,
        num_suppressed_classes=len(suppressed),
        seconds=time.perf_counter() - started,
        request=request,
    )


def _released(
    ledger: Ledger, site: Site, reader: FeatureReader, split: ClientSplit, request: StatisticsRequest
) -> RecordDict:
    """Answer from a release of the samples, made now if there is none; the last one where too few have changed."""
    assert split.keys is not None  # noqa: S101  # so with a ledger
    fingerprint, dtype = reader.backbone.fingerprint, request.wire_dtype
    network, chosen = f"{fingerprint} {dtype} {bool(request.holdout)}", digest_of_keys(split.keys)
    waiting = _waiting(ledger, site)
    floor = site.config.federation.min_class_count
    for path, made in ledger.releases(network, chosen):
        if (content := _answer_of(path, request, floor)) is not None:
            return _with_waiting(content, sum(waiting.values()), made)
    try:
        path = _made(ledger, site, reader, split, request, network, chosen)
    except DataWait as error:
        for path, made in ledger.releases(network):
            if (content := _answer_of(path, request, floor)) is not None:
                logger.warning("%s; the release of %s stands", error, time.strftime("%d %B %Y", time.gmtime(made)))
                return _with_waiting(content, max(sum(waiting.values()), 1), made)
        raise
    for name, number in sorted(waiting.items()):
        logger.info("%d new samples of %s wait for more", number, name)
    return _with_waiting(read_release(path).answer(request), sum(waiting.values()), time.time())


def _made(
    ledger: Ledger,
    site: Site,
    reader: FeatureReader,
    split: ClientSplit,
    request: StatisticsRequest,
    network: str,
    chosen: str,
) -> Path:
    """Make the release of some samples, about their classes in the order of their names, and return its file."""
    started, spec, dim, keys = time.perf_counter(), request.spec, reader.backbone.feature_dim, split.keys
    assert keys is not None  # noqa: S101  # so with a ledger
    class_names = np.array(split.dataset.class_names, dtype=np.str_)[split.dataset.labels[split.kept]]
    names, labels = np.unique(class_names, return_inverse=True)
    several = split.targets(spec.targets)

    def released(chosen: NDArray[np.int64], rows: NDArray[np.int64], *, squares: bool) -> ReleasedSet:
        whose = keys if split.dataset.persons is None else split.dataset.persons[split.kept]
        own = None if several is None else several.numpy()[chosen]
        sets = None if own is None else sets_of_targets(own, labels=spec.targets == "labels")
        of_rows = (_EVERY_SAMPLE,) if several is not None else known
        return ReleasedSet(keys[chosen], whose[chosen], labels[chosen], rows, of_rows, squares, sets)

    known, withheld = tuple(map(str, names)), set[str]()
    if several is not None:
        every = split.dataset.class_names
        planned = released(np.arange(len(labels)), np.zeros_like(labels), squares=False)
        withheld = {every[c] for c in ledger.withheld(planned, chosen)}
        held = np.flatnonzero(split.dataset.subset(split.kept).class_counts)
        known = tuple(sorted({every[c] for c in held} - withheld))
    if not known:
        raise RejectedRequest("this node has no class with as many samples as it must have to leave (min-class-count)")
    if several is not None:
        split = replace(split, dataset=split.dataset.with_class_names(known, drop=True))
        several = split.targets(spec.targets)
    # What is planned is checked before a sample is read, and what was read before it leaves.
    ledger.check_release(released(np.arange(len(labels)), np.zeros_like(labels), squares=False), chosen)
    collected = _collected(site, reader, split, request, torch.from_numpy(labels), len(known))
    positions, rows, statistics = collected.positions.numpy(), collected.rows.numpy(), collected.statistics
    expanded = reader.backbone.expands_features
    new = released(positions, rows, squares=expanded or _has_squares(spec, statistics))
    if statistics.targets is not None and (more := ledger.withheld(new, chosen)):
        left = torch.tensor([c for c in range(len(known)) if c not in more], dtype=torch.int64)
        statistics.targets = statistics.targets.chosen(left).placed(left, len(known))
        withheld |= {known[c] for c in more}
    smallest = ledger.check_release(new, chosen)
    if smallest is not None and not site.policy.shares_gram(smallest, dim):
        site.policy.check_gram(spec, smallest, dim, expanded=expanded)
        logger.info("with earlier releases a Gram matrix would tell of %d samples, so none leaves", smallest)
        statistics = site.policy.protected(spec, statistics, len(np.unique(new.persons)), smallest)
        new = released(positions, rows, squares=False)
    ledger.check_unchanged()
    fingerprint = reader.backbone.fingerprint
    own = StatisticsRequest(len(known), spec, request.wire_dtype, backbone_fingerprint=fingerprint, class_names=known)
    message = Message(own.to_content(), dst_node_id=0, message_type=QUERY_STATISTICS)
    suppressed = {*split.suppressed, *withheld, *(known[c] for c in collected.suppressed)}
    content = _reply(message, own, site, reader, suppressed, statistics, started).content
    info = NodeInfo(class_names=known, client_name=site.node.client_name, targets=spec.targets)
    name = reader.backbone.name
    parts = [network, chosen, spec.to_dict(), *([known] if several is not None else [])]
    question = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return ledger.keep_release(
        new, chosen, network, question, lambda path: write_release(path, info, own, content, name)
    )


def _has_squares(spec: StatisticsSpec, statistics: ClientStatistics) -> bool:
    """Return whether a sum of products of features leaves: largest directions alone are none."""
    if not (spec.gram or spec.sends_scatter):
        return False
    return statistics.scatter is None or not statistics.scatter.left_out


def _answer_of(path: Path, request: StatisticsRequest, floor: int) -> RecordDict | None:
    """Answer from a release unless it lacks what is asked for, or has a class under the floor that the run raised."""
    release = read_release(path)
    if release.fewest < floor:
        return None
    try:
        return release.answer(request)
    except RejectedRequest:
        return None


def _waiting(ledger: Ledger, site: Site) -> Counter[str]:
    """Count by class the samples that wait for more of their class, where others of it are used."""
    dataset, place = own_dataset(site.node.data_path, site.node.data_options(site.config.data)), ledger.layout().place
    used = set(dataset.labels[place >= 0].tolist())
    return Counter(dataset.class_names[label] for label in dataset.labels[place == WAITS].tolist() if label in used)


def _with_waiting(content: RecordDict, number: int, made: float) -> RecordDict:
    """Say in an answer how many samples wait, and when it was made."""
    if number:
        content.metric_records["metrics"]["num-waiting"] = number
        content.metric_records["metrics"]["made"] = int(made)
    return content
