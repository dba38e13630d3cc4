"""Statistics in few bits on the wire: every honest client is accepted, and what cannot be is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import Message
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.rank_rule import RankRule
from fedstats_app.statistics import ScatterSpec, StatisticsSpec
from fedstats_app.wire import RejectedReply, read_statistics_reply, statistics_reply
from fedstats_app.wire.arrays import NUMBER_BYTES
from fedstats_app.wire.statistics_checks import Limits
from tests.support.draws import Sample, samples
from tests.support.local_grid import instruction
from tests.wire.replies import arrays, honest_reply, put, request_for, values

KINDS = ["float16", "int8"]
FACTORS = ["float16", "int8", "int4"]


def scatter(dtype: str) -> StatisticsSpec:
    return StatisticsSpec(scatter=ScatterSpec(RankRule("number", 2.0), dtype))


@given(
    samples(max_examples=40, kinds=("random", "non-negative", "duplicates", "low rank", "one constant feature")),
    st.sampled_from(list(NUMBER_BYTES)),
    st.sampled_from(["gram", *FACTORS]),
)
def test_every_honest_client_is_accepted_and_is_near_what_it_has(sample: Sample, kind: str, what: str) -> None:
    spec = StatisticsSpec(gram=True) if what == "gram" else scatter(what)
    request = request_for(spec, wire_dtype=kind)
    norm = float(sample.features.double().square().sum(dim=1).max().sqrt()) if len(sample.features) else 1.0
    limits, dim = Limits(norm * (1 + 1e-6)), sample.features.shape[1]
    labels = sample.labels.clamp(max=request.num_classes - 1)
    made = request.statistics(sample.features, labels)
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [4, 30])
def test_what_cannot_be_is_refused(kind: str, n: int) -> None:
    request = request_for(StatisticsSpec(gram=True), wire_dtype=kind)

    def forged(key: str, change: object) -> Message:
        reply = honest_reply(request, n=n)
        array = values(reply.content, key)
        put(reply.content, key, change(array))  # type: ignore[operator]
        return reply

    for key in ("class-sum-scales", "gram-scales"):
        for wrong in (np.nan, np.inf, -1.0):
            with pytest.raises(RejectedReply, match=key):
                read_statistics_reply(forged(key, lambda a, w=wrong: np.full_like(a, w)), request)
        with pytest.raises(RejectedReply, match=key):
            read_statistics_reply(forged(key, lambda a: a[:-1]), request)
        with pytest.raises(RejectedReply, match=key):
            read_statistics_reply(forged(key, lambda a: a.astype(np.float64)), request)
    for key in ("class-sums", "gram-factor"):
        with pytest.raises(RejectedReply, match=key):
            read_statistics_reply(forged(key, lambda a: a.astype(np.float32)), request)
    with pytest.raises(RejectedReply, match="sum of exactly zero"):
        read_statistics_reply(forged("class-sums", np.zeros_like), request)
    with pytest.raises(RejectedReply, match="gram"):  # a Gram matrix far smaller than the sums force
        read_statistics_reply(forged("gram-scales", lambda a: a * np.float32(0.1)), request)
    without = honest_reply(request, n=n)
    del arrays(without.content)["class-sum-scales"]
    with pytest.raises(RejectedReply, match="class-sum-scales"):
        read_statistics_reply(without, request)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_directions_that_cannot_be_are_refused(dtype: str) -> None:
    request = request_for(scatter(dtype))
    honest = honest_reply(request)
    read_statistics_reply(honest, request)
    empty = 0x88 if dtype == "int4" else 0
    for change, reason in (
        (lambda a: np.full_like(a, empty), "none may be zero"),
        (lambda a: np.stack([a[0], a[0]]), "orthonormal"),
        (lambda a: a[:, :-1], "scatter-directions"),
        (lambda a: a.astype(np.float16), "scatter-directions"),
    ):
        reply = honest_reply(request)
        put(reply.content, "scatter-directions", change(values(reply.content, "scatter-directions")))
        with pytest.raises(RejectedReply, match=reason):
            read_statistics_reply(reply, request)


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
