"""FedMeZO's messages: their sizes, and setups that cannot be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedstats_app.fedmezo.log import Update
from fedstats_app.fedmezo.setup import MezoSetup
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire.mezo import MezoReply, MezoRequest
from fedstats_app.wire.reading import from_values, to_values
from tests.wire.messages import ARRAYS, SETUP


def test_bytes_are_counted() -> None:
    assert MezoRequest(0, 1, 7).round_bytes == 24
    one = MezoRequest(0, 9, 7, (Update(1, (0.5,)),))
    assert (one.round_bytes, one.catch_up_bytes) == (40, 0)
    missed = MezoRequest(0, 9, 7, (Update(1, (0.5,)),) * 4)
    assert (missed.round_bytes, missed.catch_up_bytes) == (40, 48)
    first = MezoRequest(0, 1, 7, setup=SETUP, start=ARRAYS)
    assert (first.round_bytes, first.catch_up_bytes) == (24, 4 * (5 * 6 + 5))
    assert MezoReply((0.5,), 3, bytes(16)).num_bytes == 32


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive and finite"),
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
    kept = json.loads(json.dumps(to_values(SETUP)))
    assert to_values(from_values(MezoSetup, kept)) == to_values(SETUP)
