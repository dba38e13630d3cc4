"""The measurement of a FedMeZO step, on networks that take no time."""

import json

import pytest

from research.benchmarks import mezo_memory


def test_a_run_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models", "tiny", "--weights", "random", "--size", "64", "--batch-size", "4", "--repeats", "1"]
    code = mezo_memory.main(arguments)
    found = json.loads(capsys.readouterr().out)
    (one,) = found["measurements"]
    assert one["case"]["model"] == "tiny" and one["how"] in ("read", "copy")
    assert set(one["live_megabytes"]) == {"forward", "step", "gradient"} and min(one["seconds"].values()) > 0
    within = one["modules"] <= found["limit_modules"] and one["passes"] <= found["limit_passes"]
    assert code == int(not within)
