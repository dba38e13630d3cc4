"""The measurement of a FedMeZO step, on networks that take no time."""

import dataclasses
import json

import pytest
import torch

from research.benchmarks import mezo_memory
from research.benchmarks.live_tensors import LiveTensors
from research.benchmarks.mezo_memory import Case, Measurement, Work, live_megabytes

TINY = Case("tiny", "random", "float32", 4, 64, "read", "rademacher")


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


@pytest.mark.parametrize("how", ["read", "copy"])
def test_memory_of_a_step_is_seen(how: str) -> None:
    """A layer of many weights and few activations: all of it is alive once, by "copy" together with the others."""
    work = Work(dataclasses.replace(TINY, how=how))  # type: ignore[arg-type]
    forward, step, gradient = (live_megabytes(work, kind) for kind in mezo_memory.KINDS)
    assert 0 < forward <= step and forward < gradient
    if how == "copy":
        assert step - forward >= 0.9 * work.perturbation.copy_bytes / 1e6


def test_a_run_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--models", "tiny", "--weights", "random", "--size", "64", "--batch-size", "4", "--repeats", "1"]
    code = mezo_memory.main(arguments)
    found = json.loads(capsys.readouterr().out)
    (one,) = found["measurements"]
    assert one["case"]["model"] == "tiny" and one["how"] in ("read", "copy")
    assert set(one["live_megabytes"]) == {"forward", "step", "gradient"} and min(one["seconds"].values()) > 0
    within = one["modules"] <= found["limit_modules"] and one["passes"] <= found["limit_passes"]
    assert code == int(not within)


def measurement(step_megabytes: float, step_seconds: float) -> Measurement:
    live = {"forward": 10.0, "step": step_megabytes, "gradient": 50.0}
    seconds = {"forward": 1.0, "step": step_seconds, "gradient": 3.0, "draw": 0.5}
    return Measurement(TINY, "read", 20.0, 4.0, live, seconds)


@pytest.mark.parametrize(("megabytes", "seconds", "code"), [(14.3, 2.6, 0), (14.5, 2.5, 1), (14.0, 2.8, 1)])
def test_beyond_a_limit_the_program_fails(
    megabytes: float, seconds: float, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = measurement(megabytes, seconds)
    assert made.modules == pytest.approx((megabytes - 10) / 4) and made.passes == pytest.approx(seconds - 0.5)
    monkeypatch.setattr(mezo_memory, "measure", lambda case, repeats: made)
    assert mezo_memory.main(["--models", "tiny"]) == code
