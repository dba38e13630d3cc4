"""Answers to ``query.secure_sums`` and ``query.secure_scores``: words of a client's samples, masked before they leave.

Scores are of the samples in the statistics, or of all that were held out of them. Sets of parties are compared for
both together: from statistics over some parties and scores over others, what few of them have would follow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.evaluation import check_persons, evaluate_heads, target_scores
from fedstats_app.client.ledger import SUMS, note_heads
from fedstats_app.client.secure import remember, remembered
from fedstats_app.client.site import Site
from fedstats_app.heads import LinearHead
from fedstats_app.heads.leave_one_out import ClientLeftOut, LeaveOneOut
from fedstats_app.heads.summed_scores import SummedScores
from fedstats_app.heads.targets import TargetLeaveOneOut
from fedstats_app.privacy import statistics_above_floor
from fedstats_app.secure.party import Party, Unsafe
from fedstats_app.secure.plan import Plan
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.secure_words import WORD_BYTES, SecureLayout, as_words, mean_weights
from fedstats_app.wire.evaluation import heads_digest, read_heads
from fedstats_app.wire.secure import (
    SCORES,
    SumRequest,
    read_question,
    read_scores_request,
    read_sums_request,
    sums_reply,
)
from fedstats_app.wire.statistics import StatisticsRequest


def sums(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples and return masked words of what is summed of them."""
    plan, turn, active = read_sums_request(msg)
    site = Site.of(context, client_id)
    with remembered(context, client_id) as party:
        request, sum_request = _question(site, party)
        reader = site.reader(request.backbone_fingerprint)
        layout = SecureLayout(
            reader.backbone.feature_dim,
            sum_request.samples,
            sum_request.norm,
            request.spec.gram,
            sum_request.spread,
            labels=request.spec.targets == "labels",
        )
        if layout.bits != request.spec.fraction_bits:
            raise Unsafe(f"{layout.bits} bits of fraction go with this sum, not {request.spec.fraction_bits}")
        if (ledger := site.ledger) is not None:
            ledger.spend(SUMS, [hashlib.sha256(party.question.encode()).hexdigest()])
        classes, listed = _classes(party, plan, active, request.num_classes)
        statistics = _statistics(site, reader, request, classes)
        present = statistics.present if statistics.targets is None else (statistics.targets.known > 0) & classes
        if not torch.equal(present, listed):
            raise Unsafe("images that cannot be read leave a class with too few samples: repair or remove them")
        if ledger is not None:
            ledger.check_unchanged()
        holders = torch.from_numpy(plan.holders(active)[: request.num_classes])
        words = layout.words(statistics, classes, mean_weights(holders, classes))
        remember(context, client_id, party.mask(plan, turn, active, words, "sums"))
    return sums_reply(msg, words, layout.shapes(int(classes.sum())))


def scores(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score heads on the samples held out, or one on those in the sum, and return masked words of the scores.

    The kind of sum names the heads: a client that was sent others has other masks. Its owner's limit of heads counts
    each once, in whichever runs of masks it comes.
    """
    plan, turn, active = read_scores_request(msg)
    site, kind = Site.of(context, client_id), f"{SCORES}|{heads_digest(msg.content)}"
    with remembered(context, client_id) as party:
        request, _ = _question(site, party)
        if not any(sent.kind == "sums" for sent in party.sent.values()):
            raise Unsafe("scores are given after words of the statistics, which tell whether all samples can be read")
        targets = request.spec.targets
        heads, left_out = read_heads(msg.content, request.num_classes - bool(targets), targets)
        if isinstance(left_out, ClientLeftOut):
            raise Unsafe("of a site left out of a head only that site's scores are asked for, which no sum hides")
        if (ledger := site.ledger) is not None and not site.node.trains:
            question = ConfigRecord({"question": party.question})
            records = {name: record for name, record in msg.content.items() if name.startswith(("head.", "leave"))}
            note_heads(ledger, RecordDict({**records, "question": question}), context)
        _, listed = _classes(party, plan, active, request.num_classes)
        if left_out is None and not plan.classes(active)[request.num_classes :].any():
            raise Unsafe(f"fewer than {plan.least} clients hold samples out")
        numbers = _numbers(site, request, listed, heads, left_out)
        if ledger is not None:
            ledger.check_unchanged()
        words = [as_words(numbers)]
        remember(context, client_id, party.mask(plan, turn, active, words, kind))
    return sums_reply(msg, words, [(len(numbers), WORD_BYTES)])


def _classes(party: Party, plan: Plan, active: Sequence[int], number: int) -> tuple[Tensor, Tensor]:
    """Return which classes are summed, and which of these the client lists, (C,) bool."""
    classes = torch.from_numpy(plan.classes(active)[:number])
    return classes, torch.from_numpy(plan.lists[party.index(plan)].astype(bool)[:number]) & classes


def _numbers(
    site: Site,
    request: StatisticsRequest,
    listed: Tensor,
    heads: Mapping[str, LinearHead],
    left_out: LeaveOneOut | TargetLeaveOneOut | None,
) -> Tensor:
    """Return whole numbers that say how good heads are on the client's samples, of the listed classes if in the sum."""
    split = site.split(request.class_names, holdout=request.holdout, seed=request.seed)
    check_persons(split, left_out)
    reader = site.reader(request.backbone_fingerprint)
    if isinstance(left_out, TargetLeaveOneOut):
        targets = split.targets(request.spec.targets)
        assert targets is not None  # noqa: S101  # of this kind
        targets = torch.where(listed, targets, torch.nan)[:, 1:]  # the first is in every sample
        blocks = reader.blocks(split.dataset, split.kept)
        of_labels = target_scores(request.spec.targets, blocks, targets, heads, left_out, site.floor)
        return torch.cat([own.numbers for own in of_labels.values()])
    labels = torch.from_numpy(split.dataset.labels[split.kept].copy())
    split = replace(split, kept=split.kept[listed[labels].numpy()])
    by_class = left_out is not None  # class lists do not say of which classes clients hold samples out
    scored = evaluate_heads(reader, split, request, heads, min_class_count=site.floor, left_out=left_out, summed=True)
    found = [SummedScores.of(own, by_class=by_class) for own in scored.values()]
    # The others count on samples of every class that is listed, or on some that are held out.
    wanted = listed if by_class else torch.tensor([len(split.held_out) > 0])
    if not all(torch.equal((own.right + own.wrong if by_class else own.others[:1]) > 0, wanted) for own in found):
        raise Unsafe("images that cannot be read leave too few samples to be scored: repair or remove them")
    return torch.cat([own.numbers for own in found])


def _question(site: Site, party: Party) -> tuple[StatisticsRequest, SumRequest]:
    """Return the question of a run of masks; refuse one of noise, and where the data have changed."""
    request, sum_request = read_question(party.question)
    if not isinstance(sum_request, SumRequest):
        raise Unsafe("this run of masks is for sums with noise")
    if (ledger := site.ledger) is not None and ledger.identity() != party.own.identity:
        raise Unsafe("this node's data changed since this run of masks began")
    return request, sum_request


def _statistics(site: Site, reader: FeatureReader, request: StatisticsRequest, classes: Tensor) -> FeatureStatistics:
    """Return the client's statistics of the classes that are summed, as if it had no others."""
    split = site.split(request.class_names, holdout=request.holdout, seed=request.seed)
    labels = torch.from_numpy(split.dataset.labels[split.kept].copy())
    stay, targets = classes[labels], split.targets(request.spec.targets)
    kept = split.kept[stay.numpy()]
    found = statistics_above_floor(
        site.policy,
        request.spec,
        labels[stay],
        lambda positions: reader.blocks(split.dataset, kept[positions.numpy()]),
        num_classes=request.num_classes,
        feature_dim=reader.backbone.feature_dim,
        device=reader.backbone.device,
        persons=split.persons(kept),
        masked=True,
        expanded=reader.backbone.expands_features,
        targets=targets if targets is None else targets[stay],
    )
    return found.statistics.summed()
