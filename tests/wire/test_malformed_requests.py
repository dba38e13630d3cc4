"""Every key of every request, given a value of another type, or left out, is refused by name on the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedstats_app.heads import LinearHead
from fedstats_app.heads.personal import PersonalSolver
from fedstats_app.statistics import FeatureStatistics
from fedstats_app.training.zeroth_order.log import SeedPool, Update
from fedstats_app.wire import (
    RejectedRequest,
    StatisticsRequest,
    evaluation_content,
    read_evaluation_request,
    read_statistics_request,
)
from fedstats_app.wire.arrays import to_record
from fedstats_app.wire.mezo import MezoRequest, read_mezo_request
from fedstats_app.wire.mezo_setup import MezoSetup
from fedstats_app.wire.personal import Prototypes, personal_content, read_personal_task
from fedstats_app.wire.personal_heads import personal_heads_content, read_personal_heads_task
from fedstats_app.wire.prototypes import prototype_content, read_prototype_task
from fedstats_app.wire.training import TrainingRequest, read_training_task
from tests.support.local_grid import instruction
from tests.wire.replies import DIM, NUM_CLASSES, features_and_labels

REQUEST = TrainingRequest(NUM_CLASSES, "full", class_names=("a", "b", "c", "d", "e"))
ARRAYS = {"head.weight": torch.ones(NUM_CLASSES, DIM), "head.bias": torch.zeros(NUM_CLASSES)}
EVERY = torch.ones(NUM_CLASSES, dtype=torch.bool)
SHARED = Prototypes(torch.ones(NUM_CLASSES, DIM), EVERY, "mean-square", 0.5)
HEAD = LinearHead(torch.ones(NUM_CLASSES, DIM).double(), torch.zeros(NUM_CLASSES).double())
STATISTICS = FeatureStatistics.from_features(*features_and_labels(), NUM_CLASSES)
SETUP = MezoSetup(REQUEST, tuned="full", num_directions=2, pool=SeedPool(5, 9))


def training_content() -> RecordDict:
    config = ConfigRecord({**REQUEST.to_config(), "server-round": 3, "proximal-mu": 0.1})
    return RecordDict({"arrays": to_record(ARRAYS), "fixed": to_record(ARRAYS), "config": config})


def mezo_content() -> RecordDict:
    updates = (Update(5, (0.5, 0.25)),)
    request = MezoRequest(0, 2, 6, updates, "curvature", True, np.zeros((9, 2)), setup=SETUP, start=ARRAYS)
    return request.to_content()


# From a kind of request to what makes a good one and what reads it.
REQUESTS: dict[str, tuple[Callable[[], RecordDict], Callable[[Message], object]]] = {
    "statistics": (StatisticsRequest(NUM_CLASSES, class_names=tuple("abcde")).to_content, read_statistics_request),
    "heads": (lambda: evaluation_content(StatisticsRequest(NUM_CLASSES), {"x": (0, HEAD)}), read_evaluation_request),
    "train": (training_content, read_training_task),
    "personalise": (lambda: personal_content(REQUEST, ARRAYS, SHARED, EVERY), read_personal_task),
    "prototypes": (
        lambda: prototype_content(REQUEST, SHARED, EVERY, server_round=1, last=False),
        read_prototype_task,
    ),
    "personal heads": (
        lambda: personal_heads_content(REQUEST, STATISTICS, PersonalSolver("ridge"), (0.0, 1.0), wire_dtype="float64"),
        read_personal_heads_task,
    ),
    "mezo": (mezo_content, read_mezo_request),
}
# What FedProx alone sends, and the letters that FedMeZO leaves out where they say nothing.
OPTIONAL = {"proximal-mu", "p", "w", "x", "k"}
# FedProx sends its term as its user gave it.
ALSO_WHOLE = {"proximal-mu"}
OF_EVERY_TYPE: tuple[Any, ...] = (1, 0.5, True, "false", b"false", [1], [0.5], ["a"], [True])


def read(kind: str, content: RecordDict) -> object:
    return REQUESTS[kind][1](instruction(content))


def config_keys() -> Iterator[tuple[str, str, str]]:
    for kind, (make, _) in REQUESTS.items():
        for name, record in make().items():
            if isinstance(record, ConfigRecord):
                yield from ((kind, name, key) for key in record)


def array_keys() -> Iterator[tuple[str, str, str]]:
    for kind, (make, _) in REQUESTS.items():
        for name, record in make().items():
            if isinstance(record, ArrayRecord):
                yield from ((kind, name, key) for key in record)


@pytest.mark.parametrize("kind", REQUESTS)
def test_the_gallery_starts_from_requests_that_are_read(kind: str) -> None:
    read(kind, REQUESTS[kind][0]())


@pytest.mark.parametrize(("kind", "name", "key"), config_keys())
def test_a_value_of_another_type_is_refused_by_name(kind: str, name: str, key: str) -> None:
    good = REQUESTS[kind][0]()[name][key]
    for value in OF_EVERY_TYPE:
        if type(value) is type(good) and not (isinstance(value, list) and good and type(value[0]) is not type(good[0])):
            continue
        if key in ALSO_WHOLE and type(value) is int:
            continue
        content = REQUESTS[kind][0]()
        content[name][key] = value
        with pytest.raises(RejectedRequest, match=f"{key}: must be .*, got ") as refusal:
            read(kind, content)
        assert len(str(refusal.value)) < 400, value


@pytest.mark.parametrize(
    ("kind", "name", "key"), [(kind, name, key) for kind, name, key in config_keys() if key not in OPTIONAL]
)
def test_a_missing_value_is_refused_by_name(kind: str, name: str, key: str) -> None:
    content = REQUESTS[kind][0]()
    del content[name][key]
    with pytest.raises(RejectedRequest, match=key):
        read(kind, content)


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [(kind, name, key) for kind, name, key in config_keys() if isinstance(REQUESTS[kind][0]()[name][key], float)],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_number_that_is_not_finite_passes(kind: str, name: str, key: str, value: float) -> None:
    content = REQUESTS[kind][0]()
    content[name][key] = value
    with pytest.raises(RejectedRequest, match=f"{key}: must be a finite"):
        read(kind, content)


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_missing_record_or_one_of_another_kind_is_refused_by_name(kind: str) -> None:
    for name, record in REQUESTS[kind][0]().items():
        if (kind, name) in {("personal heads", "arrays"), ("personal heads", "fixed")}:
            pass
        for other in (None, MetricRecord(), ConfigRecord() if isinstance(record, ArrayRecord) else ArrayRecord()):
            content = REQUESTS[kind][0]()
            del content[name]
            if other is not None:
                content[name] = other
            elif name in {"head.x", "prototypes", "setup"}:
                continue  # a request without heads, without class means, or from a node that has started
            with pytest.raises(RejectedRequest, match=name):
                read(kind, content)


HOSTILE_ARRAYS: dict[str, Callable[[Array], Array]] = {
    "another serialisation": lambda good: Array(good.dtype, good.shape, "torch.save", good.data),
    "code in the header": lambda good: with_data(
        good, with_header("{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (1,), }\n", bytes(8))
    ),
    "an endless header": lambda good: with_data(good, with_header("(" * 60_000)),
    "a huge shape and few bytes": lambda good: with_data(
        good, with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999,), }\n", bytes(4))
    ),
    "cut": lambda good: with_data(good, good.data[:-1]),
    "bytes behind": lambda good: with_data(good, good.data + b"\0"),
    "half precision": lambda good: Array(good.numpy().astype(np.float16)),
    "complex": lambda good: Array(good.numpy().astype(np.complex64)),
    "text": lambda good: Array(np.array(["a"])),
    "Fortran order": lambda good: Array(np.asfortranarray(np.ones((5, 6), np.float32))),
}


def with_data(good: Array, data: bytes) -> Array:
    return Array(good.dtype, good.shape, good.stype, data)


def with_header(header: str, body: bytes = b"") -> bytes:
    encoded = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded + body


@pytest.mark.parametrize(("kind", "name", "key"), array_keys())
@pytest.mark.parametrize("case", HOSTILE_ARRAYS)
def test_a_hostile_array_is_refused_by_name(kind: str, name: str, key: str, case: str) -> None:
    content = REQUESTS[kind][0]()
    content[name][key] = HOSTILE_ARRAYS[case](content[name][key])
    with pytest.raises(RejectedRequest, match=f"{key}: "):
        read(kind, content)
