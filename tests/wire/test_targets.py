"""Sums by target and their scores travel, and what no site's samples give is refused."""

import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.heads.linear_head import LinearHead, SolveReport
from fedstats_app.heads.target_scores import TargetScores
from fedstats_app.heads.targets import TargetLeaveOneOut
from fedstats_app.statistics import ClientStatistics, StatisticsSpec
from fedstats_app.testing import instruction
from fedstats_app.wire import RejectedReply, RejectedRequest, StatisticsRequest
from fedstats_app.wire.arrays import to_array
from fedstats_app.wire.evaluation import evaluation_content, read_evaluation_request
from fedstats_app.wire.secure import SumRequest, question_text, read_question
from fedstats_app.wire.statistics import read_statistics_reply, statistics_reply
from fedstats_app.wire.target_evaluation import read_target_evaluation_reply, target_evaluation_reply

C, D, N = 3, 5, 40
NAN = float("nan")


def request_of(kind: str, dtype: str = "float64") -> StatisticsRequest:
    return StatisticsRequest(C, StatisticsSpec(gram=True, targets=kind), dtype)


def targets_of(kind: str, seed: int = 0, unknown: float = 0.2) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randn(N, C, generator=draw, dtype=torch.float64)
    values = (values > 0.3).to(torch.float64) if kind == "labels" else 9.0 * values + 4.0
    values[torch.rand(N, C, generator=draw) < unknown] = NAN
    return values


def statistics(kind: str, seed: int = 0, unknown: float = 0.2) -> ClientStatistics:
    features = torch.randn(N, D, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    labels, spec = torch.zeros(N, dtype=torch.int64), request_of(kind).spec
    accumulator = spec.accumulator(labels, C, D, targets=targets_of(kind, seed, unknown))
    accumulator.update(features)
    return accumulator.statistics()


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(["labels", "numbers"]), st.sampled_from([0.0, 0.3, 1.0]))
def test_sums_arrive_to_the_bit(seed: int, kind: str, unknown: float) -> None:
    request, sent = request_of(kind), statistics(kind, seed, unknown)
    reply = statistics_reply(instruction(request.to_content(), "query.statistics"), sent)
    found = read_statistics_reply(reply, request).statistics.targets
    assert found is not None and sent.targets is not None and found.kind == (kind,)
    known = sent.targets.known > 0
    for name, tensor in sent.targets.tensors.items():
        torch.testing.assert_close(found.tensors[name][known], tensor[known], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("key", "place", "value", "reason"),
    [
        ("target-ids", 0, 2, "must ascend"),
        ("target-ids", 2, 3, "must ascend"),
        ("target-known", 1, N + 1, r"must lie in \[1, 40\]"),
        ("target-known", 1, 0, r"must lie in \[1, 40\]"),
        ("target-sums", 0, -1.0, "must be those of labels"),
        ("target-sums", 0, 2.5, "must be those of labels"),
        ("target-sums", 0, N + 1.0, "must be those of labels"),
        ("target-products", 0, 1e13, "no feature of this backbone is longer"),
    ],
)
def test_sums_that_no_samples_have_are_refused(key: str, place: int, value: float, reason: str) -> None:
    request = request_of("labels")
    reply = statistics_reply(instruction(request.to_content(), "query.statistics"), statistics("labels"))
    record = reply.content.array_records["statistics"]
    values = record[key].numpy().copy()
    values[place] = value
    record[key] = to_array(torch.from_numpy(values))
    with pytest.raises(RejectedReply, match=reason):
        read_statistics_reply(reply, request)


@pytest.mark.parametrize("key", ["target-ids", "target-sums", "target-known-sums"])
def test_a_part_that_is_missing_is_refused(key: str) -> None:
    request = request_of("labels")
    reply = statistics_reply(instruction(request.to_content(), "query.statistics"), statistics("labels"))
    arrays = reply.content.array_records["statistics"]
    reply.content["statistics"] = ArrayRecord({name: array for name, array in arrays.items() if name != key})
    with pytest.raises(RejectedReply, match="missing"):
        read_statistics_reply(reply, request)


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_scores_and_questions_arrive(kind: str) -> None:
    draw = torch.Generator().manual_seed(3)
    weight = torch.randn(C, D, generator=draw, dtype=torch.float64)
    report = SolveReport(deviations=(1.0, 2.0, 3.0)) if kind == "numbers" else SolveReport()
    head = LinearHead(weight, torch.zeros(C, dtype=torch.float64), report=report)
    left_out = TargetLeaveOneOut(torch.eye(D, dtype=torch.float64), weight[0], weight[:2, :C].clone(), N)
    asked = evaluation_content(request_of(kind), {"fed3r": head}, left_out if kind == "labels" else None)
    _, heads, found = read_evaluation_request(instruction(asked, "evaluate.heads"))
    assert heads["fed3r"].report.deviations == report.deviations
    if kind == "labels":
        assert isinstance(found, TargetLeaveOneOut) and found.number == N
        assert all(torch.equal(getattr(found, name), getattr(left_out, name)) for name in ("inverse", "mean", "ends"))
    scores = TargetScores.of(kind, torch.randn(N, C, generator=draw, dtype=torch.float64), targets_of(kind), head)
    reply = target_evaluation_reply(instruction(asked, "evaluate.heads"), {"fed3r": scores})
    received = read_target_evaluation_reply(reply, kind, C, ("fed3r",))["fed3r"]
    assert received.measures() == scores.measures() and received.num_examples == N


@pytest.mark.parametrize(
    ("kind", "key", "place", "value"),
    [("labels", "bins", (0, 0), C), ("labels", "bins", (0, 2), -1), ("labels", "bins", (0, 3), N + 1),
     ("numbers", "moments", (0, 0), N + 1.0), ("numbers", "moments", (0, 3), -1.0)],
)  # fmt: skip
def test_scores_that_no_samples_have_are_refused(kind: str, key: str, place: tuple[int, int], value: float) -> None:
    head = LinearHead(torch.zeros(C, D, dtype=torch.float64), torch.zeros(C, dtype=torch.float64))
    scores = TargetScores.of(kind, torch.zeros(N, C, dtype=torch.float64), targets_of(kind), head)
    reply = target_evaluation_reply(instruction(request_of(kind).to_content(), "evaluate.heads"), {"fed3r": scores})
    record = reply.content.array_records["targets.fed3r"]
    values = record[key].numpy().copy()
    values[place] = value
    record[key] = to_array(torch.from_numpy(values))
    with pytest.raises(RejectedReply):
        read_target_evaluation_reply(reply, kind, C, ("fed3r",))


def test_a_secure_sum_of_labels_keeps_account_of_all_samples() -> None:
    spec = StatisticsSpec(gram=True, fraction_bits=12, targets="labels")
    request = StatisticsRequest(2, spec, "float64", class_names=("edema", "mass"))
    with pytest.raises(RejectedRequest, match="labels begin with"):
        read_question(question_text(request, SumRequest(100, 1.0, False)))
