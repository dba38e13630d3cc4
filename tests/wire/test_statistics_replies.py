"""Honest replies: what a client sends is what the server reads, with a Gram matrix, a factor, or in few bits."""

import pickle
from typing import Any

import pytest
import torch
from flwr.app import Message
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.methods import METHODS
from fedstats_app.statistics import ClassMeanRows, ClientStatistics, FeatureStatistics, StatisticsSpec, TriangularFactor
from fedstats_app.testing import instruction
from fedstats_app.wire import StatisticsRequest, read_statistics_reply, statistics_reply
from fedstats_app.wire.arrays import NUMBER_BYTES
from fedstats_app.wire.statistics_checks import Limits
from tests.support.compare import relative_difference, same_bits
from tests.support.draws import Sample, samples
from tests.wire.messages import (
    DIM,
    FEW,
    NUM_CLASSES,
    SCATTER,
    arrays,
    features_and_labels,
    honest_reply,
    request_for,
    scatter_of,
    values,
)

GRAM = StatisticsSpec(gram=True)
WIRE = {"float32": torch.float32, "float64": torch.float64}
SPECS = [StatisticsSpec(), GRAM, StatisticsSpec(gram=True, means_per_class=3)]


def answer(request: StatisticsRequest, statistics: ClientStatistics, **about: Any) -> Message:
    """Return the reply after a journey."""
    reply = statistics_reply(instruction(request.to_content()), statistics, **about)
    return pickle.loads(pickle.dumps(reply))  # noqa: S301  # Flower's simulation does it


def with_matrix(features: Tensor, labels: Tensor) -> ClientStatistics:
    """Return the statistics of a client that keeps the Gram matrix itself, also of few samples."""
    gram = FeatureStatistics.from_features(features, labels, NUM_CLASSES).gram
    return ClientStatistics(StatisticsSpec().from_features(features, labels, NUM_CLASSES).rows, gram)


@pytest.mark.parametrize("wire_dtype", WIRE)
@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_sums_arrive_bit_for_bit_or_rounded_once(spec: StatisticsSpec, wire_dtype: str) -> None:
    request, dtype = request_for(spec, wire_dtype=wire_dtype), WIRE[wire_dtype]
    sent = request.statistics(*features_and_labels())

    received = read_statistics_reply(answer(request, sent, seconds=1.5, num_unreadable=2), request, feature_dim=DIM)

    assert (received.num_examples, received.num_unreadable, received.seconds) == (30, 2, 1.5)
    found = received.statistics
    assert same_bits(found.rows.class_ids, sent.rows.class_ids) and same_bits(found.rows.counts, sent.rows.counts)
    assert same_bits(found.rows.class_sums, sent.rows.class_sums.to(dtype))
    assert (found.gram is None) == (sent.gram is None)
    within, sent_within = found.within, sent.within
    if isinstance(within, Tensor) and isinstance(sent_within, Tensor):
        assert same_bits(within, sent_within.to(dtype).to(torch.float64))
    else:
        assert within is sent_within is None or isinstance(sent_within, TriangularFactor)


# In float64 the rounding of the factor itself shows, which is another with each BLAS: 5 were seen.
@pytest.mark.parametrize(("wire_dtype", "roundings"), [("float32", 3), ("float64", 10)])
def test_few_samples_give_the_same_sums_in_either_form(wire_dtype: str, roundings: int) -> None:
    """A client that has only the matrix sends its triangle; the other, who had the features, the factor of it."""
    request = request_for(wire_dtype=wire_dtype)
    features, labels = features_and_labels(n=FEW)

    forms = (request.statistics(features, labels), with_matrix(features, labels))
    factor, triangle = (answer(request, form) for form in forms)

    assert "within-factor" in arrays(factor.content) and "within" in arrays(triangle.content)
    received = [read_statistics_reply(reply, request).statistics.summed() for reply in (factor, triangle)]
    assert same_bits(received[0].class_sums, received[1].class_sums)
    eps = float(torch.finfo(WIRE[wire_dtype]).eps)
    assert relative_difference(received[0].gram, received[1].gram) < roundings * eps


@pytest.mark.parametrize("wire_dtype", NUMBER_BYTES)
def test_few_samples_are_sent_without_forming_the_matrix(wire_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1280 features it has 13 MB, and would be formed for every client."""
    monkeypatch.setattr(TriangularFactor, "scatter", lambda factor: pytest.fail("the matrix is formed"))
    request = request_for(wire_dtype=wire_dtype)
    assert "within-factor" in arrays(answer(request, request.statistics(*features_and_labels(n=FEW))).content)


def test_a_gram_matrix_that_nobody_asked_for_stays() -> None:
    request = request_for(StatisticsSpec())
    features, labels = features_and_labels()

    received = read_statistics_reply(answer(request, with_matrix(features, labels)), request)

    assert received.statistics.gram is None and received.size.gram == 0
    assert len(received.statistics.rows) == 4, "the absent class has no row"


@pytest.mark.parametrize("feature_dim", [DIM, None])
@pytest.mark.parametrize("spec", [StatisticsSpec(), GRAM, StatisticsSpec(gram=True, means_per_class=3)])
def test_a_client_without_data_is_no_error(spec: StatisticsSpec, feature_dim: int | None) -> None:
    request = request_for(spec)
    statistics = request.statistics(torch.zeros(0, DIM), torch.zeros(0, dtype=torch.int64))

    received = read_statistics_reply(answer(request, statistics), request, feature_dim=feature_dim)

    assert received.num_examples == 0 and len(received.statistics.rows) == 0
    assert received.statistics.rows.feature_dim == DIM


def test_bytes_are_what_travels() -> None:
    request = request_for(StatisticsSpec(gram=True, means_per_class=2))
    reply = honest_reply(request)

    received = read_statistics_reply(reply, request)

    sizes = {key: len(array.data) for key, array in arrays(reply.content).items()}
    assert received.size.gram == sizes["within"] == 128 + 4 * DIM * (DIM + 1) // 2
    assert received.size.rows == sum(sizes.values()) - sizes["within"] == 3 * 128 + 8 * (8 + 8 + 4 * DIM)
    assert received.size.single_rows == 3 * 128 + 4 * (8 + 8 + 4 * DIM)
    assert received.wire_bytes == sum(sizes.values()) + 3 * 8 + 64


def one_row(count: Tensor, value: float = 1.0, *, num_classes: int = NUM_CLASSES) -> ClientStatistics:
    sums = value * torch.ones(1, DIM).double()
    rows = ClassMeanRows(torch.tensor([0]), count, None, num_classes, class_sums=sums)
    return ClientStatistics(rows, torch.eye(DIM, dtype=torch.float64))


ONE = torch.tensor([1])


@pytest.mark.parametrize(
    ("statistics", "reason"),
    [
        (one_row(ONE, num_classes=6), "must have the request's 5 classes .* got 6 classes"),
        (ClientStatistics(one_row(ONE).rows), "asks for a Gram matrix, got statistics without one"),
        (one_row(torch.tensor([2.5]).double()), "int64 counts, got .* torch.float64 counts"),
        (one_row(ONE, 1e300), r"must fit torch.float32, got values up to 1e\+300"),
    ],
)
def test_what_cannot_be_an_answer_is_an_error_on_the_client(statistics: ClientStatistics, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        answer(request_for(), statistics)


# What goes with the rows: a Gram matrix, or a factor of the scatter by its rank and dtype.
WITH_ROWS = [None, *((rank, dtype) for rank in ("sqrt(n)", "full", "0") for dtype in ("float16", "float32", "int8"))]


def spec_with(factor: tuple[str, str] | None, means_per_class: int = 1) -> StatisticsSpec:
    scatter = None if factor is None else scatter_of(*factor).scatter
    return StatisticsSpec(gram=factor is None, means_per_class=means_per_class, scatter=scatter)


@pytest.mark.parametrize("factor", WITH_ROWS[:3])
@pytest.mark.parametrize(("scale", "wire_dtype"), [(1e-4, "float32"), (1.0, "float64"), (1e4, "float32")])
def test_honest_replies_of_real_size_are_taken(scale: float, wire_dtype: str, factor: tuple[str, str] | None) -> None:
    for n, dim in ((1, 64), (40, 64), (500, 64), (3000, 16)):
        rng = torch.Generator().manual_seed(n)
        labels = torch.randint(0, 10, (n,), generator=rng)
        # A mean far from 0 and a spread far below it: the rest of the Gram matrix is at the edge of the rounding.
        features = scale * (100 + 0.01 * torch.randn(n, dim, generator=rng))
        request = StatisticsRequest(10, spec_with(factor), wire_dtype=wire_dtype)
        reply = statistics_reply(instruction(request.to_content()), request.statistics(features, labels))
        assert read_statistics_reply(reply, request, feature_dim=dim).num_examples == n


def test_exact_sums_come_with_the_exact_gram_matrix() -> None:
    request = request_for(StatisticsSpec(gram=True, fraction_bits=8), wire_dtype="float64")
    honest = honest_reply(request, n=FEW)  # no factor, though there are fewer samples than features
    client = read_statistics_reply(honest, request).statistics
    assert client.gram is not None and bool((client.gram * 2.0**16 % 1 == 0).all())


def test_exact_sums_travel_in_float64_only() -> None:
    with pytest.raises(ValueError, match="float64 for exact sums, got 'float16'"):
        request_for(StatisticsSpec(fraction_bits=8), wire_dtype="float16")


@pytest.mark.parametrize("wire_dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_samples", [60, 120], ids=["few samples", "more than features"])
def test_a_reply_has_as_many_bytes_as_the_specification_says(num_samples: int, method: str, wire_dtype: str) -> None:
    present, dim, beside = 3, 80, 88  # three numbers and the backbone's fingerprint
    features, labels = torch.rand(num_samples, dim), torch.arange(num_samples) % present
    spec = METHODS[method].default().specification
    request = StatisticsRequest(10, spec, wire_dtype=wire_dtype)
    msg = instruction(request.to_content(), "query.statistics")
    reply = statistics_reply(msg, request.statistics(features, labels), backbone_fingerprint="0" * 64, seconds=1.0)
    expected = spec.num_bytes(num_samples, present, dim, NUMBER_BYTES[wire_dtype]) + beside
    assert read_statistics_reply(reply, request).wire_bytes == expected


REQUEST = request_for(SCATTER)
VALUES, DIRECTIONS, LEFT_OUT = "scatter-values", "scatter-directions", "scatter-left-out"


def test_what_is_sent_arrives_and_is_counted() -> None:
    reply = honest_reply(REQUEST)
    received = read_statistics_reply(reply, REQUEST)
    client = received.statistics

    assert client.scatter is not None and not client.has_gram
    assert same_bits(client.scatter.values, torch.from_numpy(values(reply.content, VALUES)))
    assert same_bits(client.scatter.directions, torch.from_numpy(values(reply.content, DIRECTIONS)))
    assert client.scatter.left_out == float(values(reply.content, LEFT_OUT)) > 0.0
    sizes = {key: len(array.data) for key, array in arrays(reply.content).items()}
    assert (received.size.scatter, received.size.gram) == (2 * (4 + 2 * DIM) + 8 + 3 * 128, 0)
    assert received.wire_bytes == sum(sizes.values()) + 3 * 8 + 64


@pytest.mark.parametrize("rank", ["sqrt(n)", "0", "70%", "1.1KB"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [0, 1, 5, 30])
def test_made_of_the_gram_matrix_it_is_as_if_it_had_been_sent(n: int, dtype: str, rank: str) -> None:
    sent, derived = request_for(scatter_of(rank, dtype)), request_for(scatter_of(rank, dtype, gram=True))
    replies = [honest_reply(request, n=n) for request in (sent, derived)]

    one, other = map(read_statistics_reply, replies, (sent, derived))

    assert not any(key.startswith("scatter") for key in arrays(replies[1].content))
    factors = [received.statistics.scatter for received in (one, other)]
    assert factors[0] is not None and factors[1] is not None and len(factors[0]) == len(factors[1])
    size = float(features_and_labels(n=n)[0].square().sum()) or 1.0
    products = [factor.scaled().T @ factor.scaled() for factor in factors if factor is not None]
    assert relative_difference(products[0], products[1], scale=size) <= (2e-4 if dtype == "float16" else 1e-6)
    assert factors[0].left_out == pytest.approx(factors[1].left_out, abs=1e-5 * size)
    size = other.size
    assert size.scatter == one.size.scatter and other.wire_bytes == size.rows + size.gram + other.other_bytes


@given(n=st.integers(0, 40), kilobytes=st.sampled_from(["0.6KB", "0.9KB", "1.05KB", "1.1KB", "1.2KB", "2KB"]))
def test_every_client_keeps_a_budget_and_no_further_direction_would_fit(n: int, kilobytes: str) -> None:
    spec = scatter_of(kilobytes)
    request, allowed = request_for(spec), 1000 * float(kilobytes[:-2])
    try:
        received = read_statistics_reply(honest_reply(request, n=n), request)
    except ValueError as error:
        assert "without any direction of the scatter" in str(error)
        bare = read_statistics_reply(honest_reply(request_for(StatisticsSpec()), n=n), request_for(StatisticsSpec()))
        assert bare.wire_bytes + 8 + 3 * 128 > allowed
        return
    client = received.statistics
    assert received.wire_bytes <= allowed and client.scatter is not None
    complete = StatisticsSpec(scatter=spec.scatter).from_features(*features_and_labels(n=n), NUM_CLASSES).scatter
    assert complete is not None
    assert len(client.scatter) == len(complete) or received.wire_bytes + 4 + 2 * DIM > allowed


def test_who_has_only_the_gram_matrix_sends_a_factor_too_and_who_has_neither_is_told() -> None:
    features, labels = features_and_labels()
    summed = FeatureStatistics.from_features(features, labels, NUM_CLASSES)
    msg = instruction(REQUEST.to_content())
    own = ClientStatistics(StatisticsSpec().from_features(features, labels, NUM_CLASSES).rows, summed.gram)
    received = read_statistics_reply(statistics_reply(msg, own), REQUEST)
    ours, theirs = received.statistics.scatter, read_statistics_reply(honest_reply(REQUEST), REQUEST).statistics.scatter
    assert ours is not None and theirs is not None and torch.allclose(ours.values, theirs.values)
    with pytest.raises(ValueError, match="asks for a factor of the scatter, got statistics without one"):
        statistics_reply(msg, ClientStatistics(received.statistics.rows))


@settings(suppress_health_check=list(HealthCheck))
@given(
    samples(kinds=("random", "non-negative", "duplicates", "constant", "low rank", "one constant feature")),
    st.sampled_from(list(NUMBER_BYTES)),
    st.sampled_from(WITH_ROWS),
    st.integers(1, 3),
)
def test_honest_clients_are_accepted(
    sample: Sample, kind: str, factor: tuple[str, str] | None, means_per_class: int
) -> None:
    """Features from 1e-6 to 1e6 and beyond, more dimensions than samples, one sample, none, duplicates, constants."""
    request = StatisticsRequest(sample.num_classes, spec_with(factor, means_per_class), wire_dtype=kind)
    norm = float(sample.features.double().square().sum(dim=1).max().sqrt()) if len(sample.features) else 1.0
    limits, dim = Limits(norm * (1 + 1e-6)), sample.features.shape[1]
    made = request.statistics(sample.features, sample.labels)
    # No network's features add up to exactly zero.
    assume(not bool((made.rows.class_sums.float() == 0).all(dim=1).any()))
    msg = instruction(request.to_content(), node=1)
    reply = statistics_reply(msg, made)
    assert reply.content == statistics_reply(msg, request.statistics(sample.features, sample.labels)).content

    received = read_statistics_reply(reply, request, feature_dim=dim, limits=limits).statistics

    assert received.rows.num_examples == len(sample.labels)
    if len(made.rows):
        near = {"float16": 1e-3, "int8": 1e-2}.get(kind, 1e-6) * max(float(made.rows.class_sums.abs().max()), 1e-30)
        assert float((received.rows.class_sums - made.rows.class_sums).abs().max()) <= near
    if received.gram is not None and made.gram is not None:
        near = {"float16": 5e-3, "int8": 0.1}.get(kind, 1e-5) * max(float(made.gram.trace()), 1e-30)
        assert float((received.gram - made.gram).abs().max()) <= near
