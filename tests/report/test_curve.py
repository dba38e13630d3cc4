"""Points of a curve of accuracy against bytes."""

import json

import pytest

from fedstats_app.report.curve import CurvePoint
from fedstats_app.storage.files import to_json


def test_json_reads_back() -> None:
    point = CurvePoint("2 sqrt(n)", 5_900_000, 0.856)
    assert json.loads(to_json(point.to_json())) == {"rank": "2 sqrt(n)", "wire_bytes": 5_900_000, "accuracy": 0.856}
    assert CurvePoint.from_json(json.loads(to_json(point.to_json()))) == point


@pytest.mark.parametrize(
    ("wire_bytes", "accuracy", "message"),
    [(-1, 0.5, "wire_bytes must be at least 0, got -1"), (1, 85.6, r"accuracy must be between 0 and 1, got 85\.6")],
)
def test_values_outside_their_range_are_refused(wire_bytes: int, accuracy: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"rank 0: {message}"):
        CurvePoint("0", wire_bytes, accuracy)
