import json
from collections.abc import Callable
from typing import Any

import pytest

from fedstats_app.heads import Calibration
from fedstats_app.report.method_result import ClientAccuracy, MethodResult, head_to_take, wilson_interval
from fedstats_app.storage.files import to_json

Make = Callable[..., MethodResult]


def test_json_entry_has_what_readers_of_results_json_look_up(make_result: Make) -> None:
    result = make_result(
        "fed3r",
        0.86,
        ridge_effective=310.0,
        condition_number=float("inf"),
        calibration=Calibration(0.12, 1.7, 0.61, 0.63, 0.03, 2000),
        notes=["two clients failed"],
        parameters={"ridge_lambda": 310.0},
        accuracy_interval=wilson_interval(86, 100),
        macro_f1=0.85,
        client_accuracy=ClientAccuracy.of({12: 0.75, 3: 1.0}),
    )
    entry = json.loads(to_json({"methods": {result.method: result.to_json()}}))["methods"]["fed3r"]
    assert entry == {
        "accuracy": 0.86,
        "macro_accuracy": 0.86,
        "per_class_accuracy": [0.86, None],
        "num_examples": 8000,
        "num_clients": 100,
        "uplink_bytes": 1_700_000,
        "wire_bytes": 1_800_000,
        "solve_seconds": 0.25,
        "regulariser": "none",
        "ridge_effective": 310.0,
        "condition_number": "inf",
        "calibration": {
            "temperature": 0.12,
            "nll_before": 1.7,
            "nll_after": 0.61,
            "ece_before": 0.63,
            "ece_after": 0.03,
            "num_examples": 2000,
            "exact": False,
        },
        "notes": ["two clients failed"],
        "parameters": {"ridge_lambda": 310.0},
        "accuracy_interval": [pytest.approx(0.7786, abs=1e-4), pytest.approx(0.9147, abs=1e-4)],
        "macro_f1": 0.85,
        "macro_auroc": None,
        "macro_auroc_error": None,
        "per_class_examples": [],
        "per_class_specificity": [],
        "per_class_f1": [],
        "per_class_auroc": [],
        "most_confused": [],
        "client_accuracy": {
            "mean": 0.875,
            "minimum": 0.75,
            "maximum": 1.0,
            "std": pytest.approx(0.125 * 2**0.5),
            "by_client": {"3": 1.0, "12": 0.75},
        },
        "probe_step": None,
    }


def test_one_client_has_no_spread_and_none_has_no_accuracy() -> None:
    assert ClientAccuracy.of({5: 0.5}) == ClientAccuracy(0.5, 0.5, 0.5, None, {5: 0.5})
    assert ClientAccuracy.of({}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accuracy": 86.2}, "fed3r: accuracy must be between 0 and 1 or None, got 86.2"),
        ({"macro_accuracy": float("nan")}, "fed3r: macro_accuracy must be between 0 and 1 or None, got nan"),
        ({"macro_auroc": 1.5}, "fed3r: macro_auroc must be between 0 and 1 or None, got 1.5"),
        ({"wire_bytes": -1}, "fed3r: wire_bytes must be at least 0, got -1"),
        ({"solve_seconds": float("nan")}, "fed3r: solve_seconds must be at least 0, got nan"),
    ],
)
def test_impossible_values_are_refused(make_result: Make, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_result("fed3r", **changes)


@pytest.mark.parametrize(
    ("results", "taken"),
    [
        ({}, ""),
        ({"methods": {"fedncm": {"accuracy": None}}}, ""),
        ({"methods": {"fedncm": {"accuracy": 0.5}, "fed3r": {"accuracy": 0.8}}}, "fed3r"),
        (
            {"methods": {"fedncm": {"accuracy": 0.5}, "fed3r": {"accuracy": 0.8}}, "advice": {"method": "fedncm"}},
            "fedncm",
        ),
        ({"methods": {"fed3r": {"accuracy": 0.8}}, "advice": {"method": "fedroot"}}, "fed3r"),
        ({"methods": {"fed3r": {"accuracy": 0.8}}, "training": {"fed3r-probe": {"accuracy": 0.9}}}, "fed3r-probe"),
        ({"methods": {"fed3r": {"accuracy": 0.8}}, "training": {"fed3r-probe": {"accuracy": 0.7}}}, "fed3r"),
    ],
)
def test_one_head_is_taken_everywhere(results: dict[str, Any], taken: str) -> None:
    assert head_to_take(results) == taken
