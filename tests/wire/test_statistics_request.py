"""Requests: what the strategies ask arrives, and what no client should do is refused on the client."""

from __future__ import annotations

import json

import pytest
import torch
from flwr.app import RecordDict

from fedstats_app.statistics import RandomFourierFeatures, RandomProjection, StatisticsSpec
from fedstats_app.wire import RejectedRequest, StatisticsRequest, read_statistics_request
from tests.support.compare import same_bits
from tests.support.local_grid import instruction

SPECIFICATION = {"gram": True, "means-per-class": 1, "feature-map": {"kind": "identity"}}


def test_a_request_arrives_as_it_was_sent() -> None:
    sent = StatisticsRequest(
        3,
        (
            StatisticsSpec(gram=True, means_per_class=2),
            StatisticsSpec(feature_map=RandomFourierFeatures(16, 2, seed=2**62)),
            StatisticsSpec(gram=True, feature_map=RandomProjection(8, seed=1, activation="tanh")),
        ),
        wire_dtype="float64",
        seed=2**63 - 1,
        server_round=7,
        backbone_fingerprint="ab" * 32,
        class_names=("cat", "dog", "Łódź"),
        holdout=0,
    )

    assert read_statistics_request(instruction(sent.to_content())) == sent


def test_a_request_gives_one_set_of_statistics_per_specification() -> None:
    request = StatisticsRequest(4, (StatisticsSpec(gram=True), StatisticsSpec(feature_map=RandomProjection(9, 0))))
    features, labels = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3

    first, second = request.statistics(features, labels)

    assert same_bits(first.rows.class_sums[1], features[labels == 1].to(torch.float64).sum(dim=0))
    assert first.gram is not None and second.gram is None and second.rows.feature_dim == 9


def hostile(key: str, value: object) -> RecordDict:
    content = StatisticsRequest(3).to_content()
    content["request"][key] = value
    return content


def specifications(**changes: object) -> str:
    return json.dumps([SPECIFICATION | changes])


HOSTILE: dict[str, tuple[RecordDict, str]] = {
    "no classes": (hostile("num-classes", 0), r"num_classes must lie in \[1, 1000000\], got 0"),
    "huge number of classes": (hostile("num-classes", 10**12), "num_classes must lie in"),
    "wire dtype": (hostile("wire-dtype", "object"), "wire_dtype must be one of"),
    "negative seed": (hostile("seed", -1), r"seed must lie in \[0, 2\^63\)"),
    "seed of 64 bits": (hostile("seed", 2**63), "seed must lie in"),
    "too few names": (hostile("class-names", ["a", "b"]), "class_names must name all 3 classes, got 2"),
    "all held out": (hostile("holdout", 1.0), r"holdout must lie in \[0, 1\)"),
    "no JSON": (hostile("specifications", "{"), "JSONDecodeError"),
    "no list": (hostile("specifications", '{"gram": true}'), "must be a list of objects"),
    "no objects": (hostile("specifications", "[1, null]"), "must be a list of objects"),
    "endless nesting": (hostile("specifications", "[" * 99_999), "RecursionError"),
    "endless text": (hostile("specifications", " " * 10**6), "take at most 100000 characters, got 1000000"),
    "no specification": (hostile("specifications", "[]"), "takes 1 to 16 specifications, got 0"),
    "17 specifications": (hostile("specifications", json.dumps([SPECIFICATION] * 17)), "1 to 16 .*, got 17"),
    "gram as text": (hostile("specifications", specifications(gram="false")), "gram must be of type bool"),
    "means as float": (hostile("specifications", specifications(**{"means-per-class": 1.5})), "must be of type int"),
    "infinite means": (hostile("specifications", specifications(**{"means-per-class": 1e999})), "must be of type int"),
    "no means": (hostile("specifications", specifications(**{"means-per-class": 0})), "must be at least 1"),
    "many means": (hostile("specifications", specifications(**{"means-per-class": 10**9})), "must be at most 10000"),
    "map as text": (hostile("specifications", specifications(**{"feature-map": "identity"})), "must be of type dict"),
    **{
        f"map {values}": (hostile("specifications", specifications(**{"feature-map": values})), reason)
        for values, reason in (
            ({"kind": "exec"}, "feature map kind must be one of"),
            ({}, "feature map kind must be one of"),
            ({"kind": "random-projection", "num_features": 10**9, "seed": 0, "activation": "relu"}, "num_features"),
            ({"kind": "random-projection", "num_features": 50_000, "seed": 0, "activation": "relu"}, "at most 32768"),
            ({"kind": "random-projection", "num_features": 4, "seed": 0, "activation": "exec"}, "activation"),
            ({"kind": "random-projection", "num_features": 4, "seed": -1, "activation": "relu"}, "seed must lie"),
            ({"kind": "random-fourier", "num_features": 4, "kernel_width": float("nan"), "seed": 0}, "kernel_width"),
            ({"kind": "random-fourier", "num_features": 4, "kernel_width": 0.0, "seed": 0}, "kernel_width"),
        )
    },
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_request_is_refused(case: str) -> None:
    content, reason = HOSTILE[case]

    with pytest.raises(RejectedRequest, match=reason) as refusal:
        read_statistics_request(instruction(content))

    assert len(str(refusal.value)) < 400
