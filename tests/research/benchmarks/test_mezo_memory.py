"""The measurement of a FedMeZO step, on networks that take no time."""

import json

import pytest
import torch

from research.benchmarks import mezo_memory
from research.benchmarks.live_tensors import LiveTensors


def test_living_tensors_are_added_up_once() -> None:
    known = torch.zeros(1000)
    with LiveTensors([known]) as live:
        first = known + 1
        view = first.view(10, 100)
        assert (live.now, live.peak) == (4000, 4000)
        second = view * 2
        assert live.now == 8000
        del first
        assert live.now == 8000
        del view
        assert (live.now, live.peak) == (4000, 8000)
        second.view(-1).add_(known)
        assert (live.now, live.peak) == (4000, 8000)
        del second
        assert live.now == 0
    assert (live.now, live.peak) == (0, 8000)


def test_a_run_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models", "tiny", "--weights", "random", "--size", "64", "--batch-size", "4", "--repeats", "1"]
    code = mezo_memory.main(arguments)
    found = json.loads(capsys.readouterr().out)
    (one,) = found["measurements"]
    assert one["case"]["model"] == "tiny" and one["how"] in ("read", "copy")
    assert set(one["live_megabytes"]) == {"forward", "step", "gradient"} and min(one["seconds"].values()) > 0
    within = one["modules"] <= found["limit_modules"] and one["passes"] <= found["limit_passes"]
    assert code == int(not within)
