"""FedMeZO's messages: there and back, their sizes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.mezo import (
    MAX_SCALAR,
    MEZO,
    Behind,
    MezoReply,
    MezoRequest,
    mezo_reply,
    read_mezo_reply,
    read_mezo_request,
)
from fedstats_app.wire.reading import MAX_COUNT, from_values, to_values
from tests.support.local_grid import instruction

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.integers(0, 2**63 - 1)
SETUP = MezoSetup(
    TrainingRequest(2, "full", temperature=0.5, seed=3, class_names=("a", "b")),
    tuned="lora",
    epsilon=0.01,
    num_directions=2,
    distribution="gaussian",
    dtype="float64",
    batch_size=7,
    lora_rank=2,
    lora_alpha=4.0,
)
START = {"head.weight": torch.ones(2, 3), "head.bias": torch.zeros(2)}


@given(NUMBERS, st.integers(1, 2**62), NUMBERS, st.lists(st.tuples(NUMBERS, st.tuples(FINITE, FINITE)), min_size=1))
def test_a_request_comes_back(training: int, number: int, seed: int, entries: list[Any]) -> None:
    updates = tuple(Update(one, steps) for one, steps in entries)
    request = MezoRequest(training, number, seed, updates, "curvature", True)
    assert read_mezo_request(instruction(request.to_content(), MEZO)) == request


def test_a_first_request_brings_setup_and_start() -> None:
    request = MezoRequest(0, 1, 7, setup=SETUP, start=START)
    read = read_mezo_request(instruction(request.to_content(), MEZO))
    assert read.setup is not None
    assert to_values(read.setup) == to_values(SETUP)
    assert {name: tensor.tolist() for name, tensor in read.start.items()} == {
        "head.weight": [[1.0] * 3] * 2,
        "head.bias": [0.0, 0.0],
    }
    assert (request.round_bytes, request.catch_up_bytes) == (24, 4 * 8)


def test_bytes_are_counted() -> None:
    assert MezoRequest(0, 1, 7).round_bytes == 24
    one = MezoRequest(0, 9, 7, (Update(1, (0.5,)),))
    assert (one.round_bytes, one.catch_up_bytes) == (40, 0)
    missed = MezoRequest(0, 9, 7, (Update(1, (0.5,)),) * 4)
    assert (missed.round_bytes, missed.catch_up_bytes) == (40, 48)
    assert MezoReply((0.5,), 3, bytes(16)).num_bytes == 32


def reply(answer: MezoReply | Behind) -> Message:
    return mezo_reply(instruction(RecordDict(), MEZO), answer)


@given(st.lists(st.floats(-MAX_SCALAR, MAX_SCALAR), min_size=1, max_size=5), st.integers(1, MAX_COUNT))
def test_an_answer_comes_back(scalars: list[float], number: int) -> None:
    answer = MezoReply(tuple(scalars), number, bytes(range(16)))
    assert read_mezo_reply(reply(answer), len(scalars)) == answer
    assert read_mezo_reply(reply(answer), len(scalars), number) == answer


def test_other_answers_come_back() -> None:
    assert read_mezo_reply(reply(Behind(-1)), 1) == Behind(-1)
    nothing = MezoReply((), 0, bytes(16))
    assert read_mezo_reply(reply(nothing), 1) == nothing


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epsilon": 0.0}, "epsilon and lora_alpha must be positive and finite"),
        ({"num_directions": 0}, "num_directions must lie in"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64, bfloat16, got 'float16'"),
        ({"tuned": "full"}, "tune does not fit what is tuned, got 'probe' for 'full'"),
        ({"distribution": "uniform"}, "distribution must be one of"),
    ],
)
def test_a_setup_that_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        MezoSetup(TrainingRequest(2), **options)


def test_a_setup_goes_through_json() -> None:
    import json

    kept = json.loads(json.dumps(to_values(SETUP)))
    assert to_values(from_values(MezoSetup, kept)) == to_values(SETUP)
