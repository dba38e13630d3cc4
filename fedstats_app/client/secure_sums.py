"""Answer to ``query.secure_sums``: a client's statistics as words, masked before they leave."""

from __future__ import annotations

import hashlib

import torch
from flwr.app import Context, Message
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.ledger import SUMS
from fedstats_app.client.secure import remember, remembered
from fedstats_app.client.site import Site
from fedstats_app.privacy import statistics_above_floor
from fedstats_app.secure.party import Unsafe
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.statistics.secure_words import SecureLayout, mean_weights
from fedstats_app.wire.secure import SumRequest, read_question, read_sums_request, sums_reply
from fedstats_app.wire.statistics import StatisticsRequest


def sums(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples and return masked words of what is summed of them."""
    plan, turn, active = read_sums_request(msg)
    site = Site.of(context, client_id)
    with remembered(context, client_id) as party:
        request, sum_request = read_question(party.question)
        if not isinstance(sum_request, SumRequest):
            raise Unsafe("this run of masks is for sums with noise")
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
            if ledger.identity() != party.own.identity:
                raise Unsafe("this node's data changed since this run of masks began")
            ledger.spend(SUMS, [hashlib.sha256(party.question.encode()).hexdigest()])
        classes, own = torch.from_numpy(plan.classes(active)), party.index(plan)
        statistics = _statistics(site, reader, request, classes)
        listed = torch.from_numpy(plan.lists[own].astype(bool)) & classes
        present = statistics.present if statistics.targets is None else (statistics.targets.known > 0) & classes
        if not torch.equal(present, listed):
            raise Unsafe("images that cannot be read leave a class with too few samples: repair or remove them")
        if ledger is not None:
            ledger.check_unchanged()
        words = layout.words(statistics, classes, mean_weights(torch.from_numpy(plan.holders(active)), classes))
        remember(context, client_id, party.mask(plan, turn, active, words, "sums"))
    return sums_reply(msg, words, layout.shapes(int(classes.sum())))


def _statistics(site: Site, reader: FeatureReader, request: StatisticsRequest, classes: Tensor) -> FeatureStatistics:
    """Return the client's statistics of the classes that are summed, as if it had no others."""
    split = site.split(request.class_names, holdout=0.0, seed=request.seed)
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
