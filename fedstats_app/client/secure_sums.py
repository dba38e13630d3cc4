"""Answer to ``query.secure_sums``: a client's statistics as words, masked before they leave."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import torch
from flwr.app import Context, Message
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.ledger import QUESTIONS
from fedstats_app.client.secure import remembered
from fedstats_app.client.site import Site
from fedstats_app.privacy import Cells, statistics_above_floor
from fedstats_app.secure.graph import MIN_HOLDERS
from fedstats_app.secure.party import Unsafe
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.secure_words import Known, SecureLayout, Words, check_range
from fedstats_app.wire.reading import to_values
from fedstats_app.wire.secure import SumRequest, asked_digest, read_sums_request, sums_reply
from fedstats_app.wire.statistics import StatisticsRequest


def sums(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples and return masked words of what is summed of them."""
    plan, turn, active, request, sum_request, known = read_sums_request(msg)
    site = Site.of(context, client_id)
    site.check(request)
    reader = site.reader(request.backbone_fingerprint)
    with remembered(context, client_id) as party:
        question = _digest(request, sum_request)
        if (
            party.notes.setdefault("question", question) != question
            or (sum_request.gram != "none") != request.spec.gram
        ):
            raise Unsafe("the statistics asked for are others than in the round before")
        if sum_request.kind != "presence" and "present" not in party.notes:
            raise Unsafe("a sum needs to know first how many clients have each class")
        if sum_request.kind == "presence" and any(
            name.isdecimal() for name in party.notes
        ):  # a round: the first is of this
            raise Unsafe("it is known already how many clients have each class")
        if (ledger := site.ledger) is not None:
            if ledger.identity() != party.identity:
                raise Unsafe("this node's data changed since this run of masks began")
            ledger.keep_rules((site.floor, request.holdout > 0))
            ledger.spend(QUESTIONS, [question + reader.backbone.fingerprint])
        number, dim, bits = request.num_classes, reader.backbone.feature_dim, int(request.spec.fraction_bits or 0)
        layout = SecureLayout(number, dim, bits, sum_request.narrow, sum_request.gram, len(plan.parties))
        holders, classes = known.get("holders"), torch.ones(number, dtype=torch.bool)
        allowed = classes if holders is None else holders - sum_request.most_lost >= MIN_HOLDERS
        own = _statistics(site, reader, request, allowed, gram=sum_request.kind not in ("presence", "spread"))
        if ledger is not None:
            ledger.check_unchanged()
        check_range(own, sum_request.most_samples, sum_request.norm)
        words = _words(layout, sum_request, own, allowed, known)
        party.mask(plan, turn, active, words, asked_digest(msg.content))
        fewest = None if holders is None else min(holders[allowed].tolist(), default=None)
        party.notes[str(turn)] = [sum_request.kind, fewest, _subtractable(sum_request)]
    return sums_reply(msg, words)


def _subtractable(sum_request: SumRequest) -> list[str]:
    """Name what sums are told apart by: of two that have a name in common, one can be taken from the other.

    The scatter follows from an exact Gram matrix, and its products from both.
    """
    own: list[str] = [sum_request.kind] if sum_request.kind in ("presence", "spread", "sums") else []
    return own if own and (sum_request.kind, sum_request.gram) != ("sums", "exact") else [*own, "scatter"]


def _digest(request: StatisticsRequest, sum_request: SumRequest) -> str:
    """Return what must stay the same in all rounds."""
    same = replace(sum_request, kind="presence", most_lost=0)
    return hashlib.sha256(json.dumps([to_values(request), to_values(same)], sort_keys=True).encode()).hexdigest()


def _statistics(
    site: Site, reader: FeatureReader, request: StatisticsRequest, allowed: Tensor, *, gram: bool
) -> FeatureStatistics:
    """Return the client's statistics of the classes allowed, as if it had no others."""
    split = site.split(request.class_names, holdout=request.holdout, seed=request.seed)
    labels = torch.from_numpy(split.dataset.labels[split.kept].copy())
    stay = allowed[labels]
    cells = split.cells
    if cells is not None:
        cells = Cells(cells.number[stay], cells.held_out[stay], cells.floor)
    kept = split.kept[stay.numpy()]
    spec = replace(request.spec, gram=request.spec.gram and gram)
    found = statistics_above_floor(
        site.policy,
        spec,
        labels[stay],
        lambda positions: reader.blocks(split.dataset, kept[positions.numpy()]),
        num_classes=request.num_classes,
        feature_dim=reader.backbone.feature_dim,
        device=reader.backbone.device,
        cells=cells,
        masked=True,
        expanded=reader.backbone.expands_features,
    )
    return found.statistics.summed()


def _words(
    layout: SecureLayout, sum_request: SumRequest, own: FeatureStatistics, allowed: Tensor, known: dict[str, Tensor]
) -> Words:
    if sum_request.kind == "presence":
        return layout.presence(own.class_counts)
    if sum_request.kind == "sums":
        return layout.sums(own, allowed)
    means = known["means"].to(torch.float64)
    if sum_request.kind == "spread":
        return layout.means_spread(own, means, known["weights"])
    scales = known["scales"].to(torch.float64)
    about = Known(means, scales, scales.square())
    if sum_request.kind == "scatter":
        return layout.scatter(own, about)
    return layout.product(own, about, known["directions"].to(torch.float64))
