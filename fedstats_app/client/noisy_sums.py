"""What a client does with ``query.secure_noisy``: sums of its samples with its share of noise, masked.

No floor and no cell decides here which samples count: what depends on how many there are would move a sum by more than
one sample. All samples of the classes that are asked for do, each by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import numpy as np
import torch
from flwr.app import Context, Message
from torch import Tensor

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.client.secure import remembered
from fedstats_app.client.site import Site
from fedstats_app.secure.account import least_honest
from fedstats_app.secure.party import Unsafe
from fedstats_app.statistics.noisy_words import NoisyLayout
from fedstats_app.wire.reading import to_values
from fedstats_app.wire.secure import read_noisy_request, sums_reply
from fedstats_app.wire.statistics import StatisticsRequest


def sums(msg: Message, context: Context, client_id: int | None) -> Message:
    """Run the frozen backbone over the client's samples and return masked words of their sum and of noise."""
    plan, turn, active, request, asked, mean = read_noisy_request(msg)
    site = Site.of(context, client_id)
    site.check(request)
    reader = site.reader(request.backbone_fingerprint)
    with remembered(context, client_id) as party:
        dim = reader.backbone.feature_dim
        layout = NoisyLayout(request.num_classes, dim, request.specs[0].gram, asked.mu, asked.clip)
        question = _digest([to_values(request), asked.mu, asked.clip, reader.backbone.fingerprint])
        if party.notes.setdefault("question", question) != question:
            raise Unsafe("the statistics asked for are others than in the round before")
        if mean is not None and len(mean) != layout.feature_dim:
            raise Unsafe(f"the mean must have {layout.feature_dim} features, got {len(mean)}")
        # By the number of parties that this client shared keys with, not by what anybody says of them.
        honest, own = least_honest(len(plan.parties)), layout.sums(asked.kind, _blocks(site, reader, request), mean)
        key = None
        if (ledger := site.ledger) is not None:
            # The numbers themselves are part of the question: no noise hides two versions of them.
            about = [question, asked.kind, honest, plan.identities(active), _bytes([] if mean is None else [mean])]
            noise = _digest([*about, _bytes(own)])
            charge = layout.charge(asked.kind)
            ledger.charge(noise, charge, context.run_id, room=asked.mu if asked.kind == "mean" else charge)
            party.notes[f"noise|{turn}"], key = noise, ledger.noise_key(noise)
        words = layout.noisy(asked.kind, own, honest, key)
        party.mask(plan, turn, active, words)
        party.notes[str(turn)] = [asked.kind, None, []]
    return sums_reply(msg, words)


def _blocks(site: Site, reader: FeatureReader, request: StatisticsRequest) -> Iterator[tuple[Tensor, Tensor]]:
    dataset, indices = site.all_samples(request.class_names)
    labels = torch.from_numpy(np.array(dataset.labels[indices]))
    for features, positions in reader.blocks(dataset, indices):
        yield features, labels[positions]


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _bytes(tensors: list[Tensor]) -> list[str]:
    return [hashlib.sha256(one.contiguous().numpy().tobytes()).hexdigest() for one in tensors]
