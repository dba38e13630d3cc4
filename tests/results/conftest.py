from collections.abc import Callable
from typing import Any

import pytest

from fedstats_app.results import MethodResult


@pytest.fixture
def make_result() -> Callable[..., MethodResult]:
    def make(method: str, accuracy: float | None = 0.75, **changes: Any) -> MethodResult:
        values: dict[str, Any] = {
            "method": method,
            "accuracy": accuracy,
            "macro_accuracy": accuracy,
            "per_class_accuracy": [accuracy, None],
            "num_examples": 8000,
            "num_clients": 100,
            "uplink_bytes": 1_700_000,
            "wire_bytes": 1_800_000,
            "solve_seconds": 0.25,
            "regulariser": "none",
        }
        return MethodResult(**{**values, **changes})

    return make
