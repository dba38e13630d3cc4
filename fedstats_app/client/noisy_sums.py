"""Sums in which noise hides a client's samples: ``query.secure_noisy`` and ``query.noisy_sums``.

The first answer has the client's share of the noise, and a mask; the second as much noise as is needed, alone.

No floor and no cell decides here which samples count: what depends on how many there are would move a sum by more than
one sample. All samples of the classes that are asked for do, each by itself; of a person up to a limit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from flwr.app import Context, Message
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.secure import remember, remembered
from fedstats_app.client.site import Site
from fedstats_app.secure.account import least_honest
from fedstats_app.secure.party import Unsafe
from fedstats_app.statistics.noisy_words import NoisyKind, NoisyLayout
from fedstats_app.wire.reading import RejectedRequest
from fedstats_app.wire.secure import (
    NoisyRequest,
    read_clear_request,
    read_noisy_request,
    read_question,
    sums_reply,
)
from fedstats_app.wire.statistics import StatisticsRequest


def sums(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples and return masked words of their sum and of noise."""
    plan, turn, active, mean = read_noisy_request(msg)
    site, kind = Site.of(context, client_id), _kind(mean)
    with remembered(context, client_id, hidden=(ValueError,)) as party:
        reader, layout, request = _prepared(site, party.question, mean)
        if site.ledger is not None and site.ledger.identity(noisy=True) != party.own.identity:
            raise Unsafe("this node's data changed since this run of masks began")
        own = layout.sums(kind, _blocks(site, reader, request), mean)
        # By the number of parties that this client shared keys with, not by what anybody says of them.
        honest = least_honest(len(plan.parties))
        about = [
            party.question,
            reader.backbone.fingerprint,
            kind,
            honest,
            plan.identities(active),
            *_bytes(mean, *own),
        ]
        noise, key = _charged(site, layout, kind, about)
        words = layout.noisy(kind, own, honest, key)
        known = b"" if mean is None else mean.numpy().tobytes()
        party = party.mask(plan, turn, active, words, kind, known=known, note="" if key is None else noise)
        remember(context, client_id, party)
    return sums_reply(msg, words, layout.shapes(kind))


def clear(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples and return words of their sum with all of the noise."""
    question, mean = read_clear_request(msg)
    site, kind = Site.of(context, client_id), _kind(mean)
    reader, layout, request = _prepared(site, question, mean)
    layout = replace(layout, salted=True)
    own = layout.sums(kind, _blocks(site, reader, request), mean)
    _, key = _charged(site, layout, kind, [question, reader.backbone.fingerprint, kind, *_bytes(mean, *own)])
    return sums_reply(msg, layout.noisy(kind, own, 1, key), layout.shapes(kind))


def _kind(mean: Tensor | None) -> NoisyKind:
    return "mean" if mean is None else "moments"


def _prepared(site: Site, question: str, mean: Tensor | None) -> tuple[FeatureReader, NoisyLayout, StatisticsRequest]:
    """Read a question, and check it; return the reader of the samples and the words of their sum beside it."""
    request, noise_request = read_question(question)
    if not isinstance(noise_request, NoisyRequest):
        raise RejectedRequest("this question is for sums without noise")
    site.check(request)
    reader = site.reader(request.backbone_fingerprint)
    layout = NoisyLayout(request.num_classes, reader.backbone.feature_dim, request.spec.gram, noise_request.mu)
    if mean is not None and len(mean) != layout.feature_dim:
        raise RejectedRequest(f"the mean must have {layout.feature_dim} features, got {len(mean)}")
    return reader, layout, request


def _charged(site: Site, layout: NoisyLayout, kind: NoisyKind, question: list[object]) -> tuple[str, bytes | None]:
    """Charge the account with an answer, and return by what its noise is known and drawn; None without a ledger.

    The sums themselves are part of the question: no noise hides two versions of them.
    """
    noise, ledger = _digest(question), site.ledger
    if ledger is None:
        return noise, None
    each = max(site.given, 1)  # samples of one person, whom the account is about where they are named
    charge = each * layout.charge(kind)
    ledger.charge(noise, charge, site.run_id, room=each * layout.mu if kind == "mean" else charge)
    return noise, ledger.noise_key(noise)


def _blocks(site: Site, reader: FeatureReader, request: StatisticsRequest) -> Iterator[tuple[Tensor, Tensor]]:
    dataset, indices = site.all_samples(request.class_names)
    labels = torch.from_numpy(np.array(dataset.labels[indices]))
    for features, positions in reader.blocks(dataset, indices):
        yield features, labels[positions]


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _bytes(*tensors: Tensor | None) -> list[str]:
    there = (tensor for tensor in tensors if tensor is not None)
    return [hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest() for tensor in there]
