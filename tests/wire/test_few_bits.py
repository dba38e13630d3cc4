"""Statistics in few bits on the wire: every honest client is accepted, and what cannot be is refused."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from fedstats_app.statistics import StatisticsSpec
from fedstats_app.wire import read_statistics_reply, statistics_reply
from fedstats_app.wire.arrays import NUMBER_BYTES
from fedstats_app.wire.statistics_checks import Limits
from tests.support.draws import Sample, samples
from tests.support.local_grid import instruction
from tests.wire.replies import request_for, scatter_of


@given(
    samples(max_examples=40, kinds=("random", "non-negative", "duplicates", "low rank", "one constant feature")),
    st.sampled_from(list(NUMBER_BYTES)),
    st.sampled_from(["gram", "float16", "int8", "int4"]),
)
def test_every_honest_client_is_accepted_and_is_near_what_it_has(sample: Sample, kind: str, what: str) -> None:
    spec = StatisticsSpec(gram=True) if what == "gram" else scatter_of("2", what)
    request = request_for(spec, wire_dtype=kind)
    norm = float(sample.features.double().square().sum(dim=1).max().sqrt()) if len(sample.features) else 1.0
    limits, dim = Limits(norm * (1 + 1e-6)), sample.features.shape[1]
    labels = sample.labels.clamp(max=request.num_classes - 1)
    made = request.statistics(sample.features, labels)
    # No network's features add up to exactly zero.
    assume(not bool((made[0].rows.class_sums.float() == 0).all(dim=1).any()))
    msg = instruction(request.to_content(), node=1)
    reply = statistics_reply(msg, made)
    assert reply.content == statistics_reply(msg, request.statistics(sample.features, labels)).content
    received = read_statistics_reply(reply, request, feature_dim=dim, limits=limits).statistics[0]
    size = max(float(made[0].rows.class_sums.abs().max()), 1e-30) if len(made[0].rows) else 1.0
    within = {"float16": 1e-3, "int8": 1e-2}.get(kind, 1e-6)
    assert (
        float((received.rows.class_sums - made[0].rows.class_sums).abs().max()) <= within * size
        if len(made[0].rows)
        else True
    )
    if what == "gram" and received.gram is not None and made[0].gram is not None:
        trace = float(made[0].gram.trace())
        wide = {"float16": 5e-3, "int8": 0.1}.get(kind, 1e-5)
        assert float((received.gram - made[0].gram).abs().max()) <= wide * max(trace, 1e-30)


def test_sums_in_few_bits_add_up_without_bias() -> None:
    """A hundred sites of one class: the error of the mean falls with their number."""
    request = request_for(StatisticsSpec(), wire_dtype="int8")
    rng, errors = np.random.default_rng(3), []
    for _ in range(400):
        features = torch.from_numpy(np.abs(rng.normal(size=(20, 6))) + [5.0, 0, 0, 0, 0, 0])
        made = request.statistics(features, torch.zeros(20, dtype=torch.int64))
        reply = statistics_reply(instruction(request.to_content(), node=1), made)
        received = read_statistics_reply(reply, request).statistics[0]
        errors.append((received.rows.class_sums.double() - made[0].rows.class_sums)[0].numpy())
    found = np.array(errors)[:, 1:]
    assert np.abs(found.mean(axis=0)).max() < 5 * found.std() / 20
