"""Sums in which noise hides a client's samples: ``query.secure_noisy``, ``query.noisy_sums``, ``query.clear_sums``.

The first answer has the client's share of the noise, and a mask; the second as much noise as is needed, alone; the
third has none, and is for a server that is trusted to add it.

No floor and no cell decides here which samples count: what depends on how many there are would move a sum by more than
one sample. All samples of the classes that are asked for do, each by itself.
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
from fedstats_app.client.ledger import QUESTIONS
from fedstats_app.client.secure import remembered
from fedstats_app.client.site import Site
from fedstats_app.secure.account import least_honest
from fedstats_app.secure.party import Unsafe
from fedstats_app.statistics.noisy_words import NoisyLayout
from fedstats_app.wire.reading import RejectedRequest, to_values
from fedstats_app.wire.secure import (
    CLEAR_SUMS,
    NoisyRequest,
    asked_digest,
    read_clear_request,
    read_noisy_request,
    sums_reply,
)
from fedstats_app.wire.statistics import StatisticsRequest


def sums(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples and return masked words of their sum and of noise."""
    plan, turn, active, request, noise_request, mean = read_noisy_request(msg)
    site = Site.of(context, client_id)
    reader, layout, question = _prepared(site, request, noise_request, mean)
    with remembered(context, client_id) as party:
        if site.ledger is not None and site.ledger.identity(noisy=True) != party.identity:
            raise Unsafe("this node's data changed since this run of masks began")
        if party.notes.setdefault("question", question) != question:
            raise Unsafe("the statistics asked for are others than in the round before")
        own = layout.sums(noise_request.kind, _blocks(site, reader, request), mean)
        # By the number of parties that this client shared keys with, not by what anybody says of them.
        honest = least_honest(len(plan.parties))
        about = [question, noise_request.kind, honest, plan.identities(active), *_bytes(mean, *own)]
        noise, key = _charged(site, layout, noise_request, about)
        if key is not None:
            party.notes[f"noise|{turn}"] = noise
        words = layout.noisy(noise_request.kind, own, honest, key)
        party.mask(plan, turn, active, words, asked_digest(msg.content))
        party.notes[str(turn)] = [noise_request.kind, None, []]
    return sums_reply(msg, words)


def clear(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples and return words of their sum, with all noise or without."""
    request, noise_request, mean = read_clear_request(msg)
    site = Site.of(context, client_id)
    reader, layout, question = _prepared(site, request, noise_request, mean)
    layout = replace(layout, salted=True)
    is_exact, ledger = msg.metadata.message_type == CLEAR_SUMS, site.ledger
    if is_exact and (site.floor > 1 or (layout.moments and site.node.gram_floor != 0)):
        # With floors one sample more could let in a class.
        raise RejectedRequest(
            "exact sums of all samples leave this node only if its owner sets min-class-count and min-gram-samples to "
            "0: let noise be added before (dp-where = sites or local)"
        )
    if is_exact and ledger is not None:
        ledger.spend(QUESTIONS, [_digest([question, noise_request.kind, *_bytes(mean)])])
    own = layout.sums(noise_request.kind, _blocks(site, reader, request), mean)
    if is_exact:
        return sums_reply(msg, layout.exact(own))
    _, key = _charged(site, layout, noise_request, [question, noise_request.kind, *_bytes(mean, *own)])
    return sums_reply(msg, layout.noisy(noise_request.kind, own, 1, key))


def _prepared(
    site: Site, request: StatisticsRequest, noise_request: NoisyRequest, mean: Tensor | None
) -> tuple[FeatureReader, NoisyLayout, str]:
    """Check a question; return the reader of the samples, the words of their sum, and a digest of the whole release."""
    site.check(request)
    if site.node.dp_unit == "client" and not noise_request.clip:
        raise RejectedRequest("this node's owner wants clients hidden, not samples alone: a run with dp-unit = client")
    reader = site.reader(request.backbone_fingerprint)
    try:
        layout = NoisyLayout(
            request.num_classes, reader.backbone.feature_dim, request.spec.gram, noise_request.mu, noise_request.clip
        )
    except ValueError as error:
        raise RejectedRequest(str(error)) from error
    if mean is not None and len(mean) != layout.feature_dim:
        raise RejectedRequest(f"the mean must have {layout.feature_dim} features, got {len(mean)}")
    return (
        reader,
        layout,
        _digest([to_values(request), noise_request.mu, noise_request.clip, reader.backbone.fingerprint]),
    )


def _charged(
    site: Site, layout: NoisyLayout, noise_request: NoisyRequest, question: list[object]
) -> tuple[str, bytes | None]:
    """Charge the account with an answer, and return by what its noise is known and drawn; None without a ledger.

    The sums themselves are part of the question: no noise hides two versions of them.
    """
    noise, ledger = _digest(question), site.ledger
    if ledger is None:
        return noise, None
    charge = layout.charge(noise_request.kind)
    ledger.charge(noise, charge, site.run_id, room=noise_request.mu if noise_request.kind == "mean" else charge)
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
