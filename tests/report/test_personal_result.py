"""Means and deviations over clients."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.files import to_json
from fedstats_app.report.personal_result import PersonalResult


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=30))
def test_moments_are_numpys(pairs: list[tuple[int, int]]) -> None:
    correct = {client: min(pair) for client, pair in enumerate(pairs)}
    tested = {client: max(pair) for client, pair in enumerate(pairs)}
    result = PersonalResult("x", correct, tested)
    accuracies = [correct[client] / tested[client] for client in tested]
    assert result.mean == pytest.approx(np.mean(accuracies))
    assert result.std == pytest.approx(np.std(accuracies), abs=1e-12)


def test_json_has_every_number() -> None:
    result = PersonalResult("x", {0: 1, 2: 3}, {0: 2, 2: 4}, {}, 10, 20, 30, 1.23456, {0: 0.5, 2: 0.0})
    entry = json.loads(to_json(result.to_json()))
    assert PersonalResult.from_json("x", entry) == replace(result, seconds=1.235)
    assert entry == {
        "accuracy_mean": 0.625,
        "accuracy_std": 0.125,
        "accuracy_weighted": pytest.approx(4 / 6),
        "num_clients": 2,
        "accuracies": {"0": 0.5, "2": 0.75},
        "num_test": {"0": 2, "2": 4},
        "failures": {},
        "bytes_down": 10,
        "bytes_up": 20,
        "forward_passes": 30,
        "seconds": 1.235,
        "mixing": {"0": 0.5, "2": 0.0},
    }
