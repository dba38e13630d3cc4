import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from scipy.stats import binomtest

from fedstats_app.base.files import to_json
from fedstats_app.heads import Calibration
from fedstats_app.report.method_result import UNSCORED, MethodResult, client_spread, head_to_take, wilson_interval

Make = Callable[..., MethodResult]


def test_json_entry_has_what_readers_of_results_json_look_up(make_result: Make) -> None:
    result = make_result(
        "fed3r",
        0.86,
        ridge_effective=310.0,
        condition_number=float("inf"),
        calibration=Calibration(0.12, 1.7, 0.61, 0.63, 0.03, 2000, "test samples"),
        notes=["two clients failed"],
        parameters={"ridge_lambda": 310.0},
        accuracy_interval=wilson_interval(86, 100),
        macro_f1=0.85,
        client_accuracy=client_spread({12: 0.75, 3: 1.0}),
    )
    entry = json.loads(to_json({"methods": {result.method: result.to_json()}}))["methods"]["fed3r"]
    assert set(entry) == {item.name for item in fields(MethodResult)} - {"method", "quality"} | {*UNSCORED}
    assert (entry["accuracy"], entry["per_class_accuracy"], entry["macro_auroc"]) == (0.86, [0.86, None], None)
    assert (entry["condition_number"], entry["ridge_effective"]) == ("inf", 310.0)
    assert entry["calibration"]["temperature"] == 0.12 and entry["calibration"]["fitted_on"] == "test samples"
    assert (entry["notes"], entry["parameters"]) == (["two clients failed"], {"ridge_lambda": 310.0})
    assert entry["accuracy_interval"] == pytest.approx([0.7786, 0.9147], abs=1e-4)
    spread = {"mean": 0.875, "minimum": 0.75, "maximum": 1.0, "std": pytest.approx(0.125 * 2**0.5)}
    assert entry["client_accuracy"] == {**spread, "by_client": {"3": 1.0, "12": 0.75}}


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
        ({"methods": {"fed3r": {"accuracy": None}}, "advice": {"method": "fed3r"}}, "fed3r"),
        ({"methods": {"fed3r": {"accuracy": 0.8}}, "training": {"fed3r-probe": {"accuracy": 0.9}}}, "fed3r-probe"),
        ({"methods": {"fed3r": {"accuracy": 0.8}}, "training": {"fed3r-probe": {"accuracy": 0.7}}}, "fed3r"),
    ],
)
def test_one_head_is_taken_everywhere(results: dict[str, Any], taken: str) -> None:
    assert head_to_take(results) == taken


@given(total=st.integers(1, 10**6), share=st.floats(0, 1))
def test_it_is_scipys(total: int, share: float) -> None:
    correct = round(share * total)
    theirs = binomtest(correct, total).proportion_ci(0.95, method="wilson")
    low, high = wilson_interval(correct, total)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert 0.0 <= low <= correct / total <= high <= 1.0


@pytest.mark.parametrize(("correct", "total"), [(-1, 3), (4, 3)])
def test_what_cannot_be_is_refused(correct: int, total: int) -> None:
    with pytest.raises(ValueError, match=f"0 <= correct <= total, got {correct} and {total}"):
        wilson_interval(correct, total)
