"""Scoring heads on what a client kept for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from flwr.app import Context, Message
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.site import ClientSplit, Site
from fedstats_app.heads import ClientScores, LinearHead, margin_bins
from fedstats_app.heads.calibration import (
    TEMPERATURE_STEP,
    TEMPERATURES,
    is_known,
    person_losses,
    sample_losses,
    voted_temperature,
)
from fedstats_app.heads.leave_one_out import ClientLeftOut, LeaveOneOut
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.heads.targets import TargetLeaveOneOut
from fedstats_app.privacy import confusion_above_floor, margins_above_floor, named_samples
from fedstats_app.privacy.evaluation import floor_in_samples, label_margins_above_floor, targets_above_floor
from fedstats_app.wire import RejectedRequest, StatisticsRequest
from fedstats_app.wire.evaluation import LeftOut, evaluation_reply, read_evaluation_request
from fedstats_app.wire.target_evaluation import target_evaluation_reply


def evaluate(msg: Message, context: Context, client_id: int | None) -> Message:
    """Score heads on the samples that the client kept for evaluation, or on the others a head without them."""
    request, heads, left_out = read_evaluation_request(msg)
    site = Site.of(context, client_id)
    site.check(request)
    split = site.split(request.class_names, holdout=request.holdout, seed=request.seed)
    check_persons(split, left_out)
    if request.spec.targets:
        return target_evaluation_reply(msg, _score_targets(site, split, request, heads, left_out))
    assert not isinstance(left_out, TargetLeaveOneOut)  # noqa: S101  # of one class a sample
    reader = site.reader(request.backbone_fingerprint)
    scores = evaluate_heads(reader, split, request, heads, min_class_count=site.floor, left_out=left_out)
    return evaluation_reply(msg, scores)


def check_persons(split: ClientSplit, left_out: LeftOut | None) -> None:
    """Refuse to leave single samples out of a head where the data name persons."""
    whole = left_out is None or isinstance(left_out, ClientLeftOut)
    if not whole and split.dataset.persons is not None:
        raise RejectedRequest("leave-one-out leaves a sample out of the head, not its person: a holdout-fraction does")


def _score_targets(
    site: Site,
    split: ClientSplit,
    request: StatisticsRequest,
    heads: Mapping[str, LinearHead],
    left_out: LeftOut | None,
) -> dict[str, TargetScores]:
    """Score heads of labels or numbers on what the client kept for it, or on the samples in the statistics."""
    reader, kind, held_out = site.reader(request.backbone_fingerprint), request.spec.targets, left_out is None
    targets = split.targets(kind, held_out=held_out)
    assert targets is not None  # noqa: S101  # of this kind
    indices = split.held_out if held_out else split.kept
    floor = floor_in_samples(site.floor, split.persons(indices))
    return target_scores(kind, reader.blocks(split.dataset, indices), targets, heads, left_out, floor)


def target_scores(
    kind: str,
    blocks: Iterable[tuple[Tensor, Tensor]],
    targets: Tensor,
    heads: Mapping[str, LinearHead],
    left_out: LeftOut | None,
    floor: int,
) -> dict[str, TargetScores]:
    """Score heads on blocks of features and their positions in (n, C) targets; each left out of the head, or not.

    Under a floor no bin of a label's positive or negative samples is of fewer, and a number known for fewer has none.
    """
    scores = {name: TargetScores.zeros(kind, targets.shape[1]) for name in heads}
    for features, positions in blocks:
        features, own = features.cpu(), targets[positions]
        for name, head in heads.items():
            found = head.logits(features)
            if isinstance(left_out, TargetLeaveOneOut):
                found = left_out.scores(head, features, own)
            scores[name] += TargetScores.of(kind, found, own, head)
    return {name: targets_above_floor(found, floor) for name, found in scores.items()}


def evaluate_heads(
    reader: FeatureReader,
    split: ClientSplit,
    request: StatisticsRequest,
    heads: Mapping[str, LinearHead],
    *,
    min_class_count: int,
    left_out: LeaveOneOut | ClientLeftOut | None = None,
    summed: bool = False,
) -> dict[str, ClientScores]:
    """Count each head's predictions and margins for the held-out samples, and choose its temperature.

    With ``left_out`` for those in the statistics, each judged by the head without it, or without the client. If they
    are ``summed`` under masks, margins for the right classes are counted in any case, and losses are at
    SUMMED_TEMPERATURES.

    Classes of which fewer than ``min_class_count`` samples can be read count without their name, in no histogram and
    for no temperature (:mod:`fedstats_app.privacy.evaluation`).
    """
    indices = split.held_out if left_out is None else split.kept
    labels = torch.from_numpy(split.dataset.labels[indices])
    whose = split.persons(indices)
    named = named_samples(labels, request.num_classes, min_class_count, whose)
    nothing = torch.empty(0, dtype=torch.int64)
    found, predictions = [nothing], {name: [nothing] for name in heads}
    # Which classes are above the floor is known when all samples are read: bins are kept by sample till then.
    bins = {name: [torch.empty(0, request.num_classes, dtype=torch.int16)] for name in heads}
    step = TEMPERATURE_STEP if min_class_count > 1 or summed else 1
    temperatures = TEMPERATURES[::step]
    losses = {name: [torch.empty(2, 0, len(temperatures), dtype=torch.float64)] for name in heads}
    voters = {name: [nothing] for name in heads}
    for features, positions in reader.blocks(split.dataset, indices):
        found.append(positions)
        features = features.cpu()
        for name, head in heads.items():
            logits = head.logits(features) if left_out is None else left_out.logits(head, features, labels[positions])
            predictions[name].append(logits.argmax(dim=1))
            bins[name].append(margin_bins(logits))
            kept = named[positions]
            losses[name].append(sample_losses(logits[kept], labels[positions][kept], temperatures))
            voters[name].append(positions[kept][is_known(logits[kept], labels[positions][kept])])
    positions = torch.cat(found)
    everybody, read = whose, labels[positions]
    whose = None if everybody is None else everybody[positions]
    # Where unreadable samples left a handful of a class, they have no say either.
    still_named = torch.equal(named[positions], named_samples(read, request.num_classes, min_class_count, whose))
    scores = {}
    for name in heads:
        predicted = torch.cat(predictions[name])
        confusion = confusion_above_floor(read, predicted, request.num_classes, min_class_count, whose)
        voting = torch.cat(losses[name], dim=1)
        if everybody is not None:
            voting = person_losses(voting, everybody[torch.cat(voters[name])])
        vote = voted_temperature(voting, without_each=step > 1) if still_named else None
        of_samples = torch.cat(bins[name])
        margins = margins_above_floor(read, of_samples, min_class_count, whose)
        of_labels = label_margins_above_floor(read, of_samples, min_class_count, whose, always=summed)
        vote = None if vote is None else step * vote
        scores[name] = ClientScores(confusion, margins, vote, of_labels, voting[0] * still_named)
    return scores
