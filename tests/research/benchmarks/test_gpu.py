"""The measurement for a GPU, on a CPU, a network that takes no time and a few files."""

import json

import pytest

from research.benchmarks import gpu

SMALL = ["--device", "cpu", "--networks", "random:tiny", "--batch-sizes", "2", "4", "--input-size", "32"]


def test_each_layer_is_a_share_of_the_bare_network(capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main([*SMALL, "--images", "12", "--commands", "fedstats run"])
    device, *lines = capsys.readouterr().out.splitlines()
    *found, command = map(json.loads, lines)
    assert device == "cpu"
    assert [one["autocast"] for one in found] == ["bf16", "none"]
    for one in found:
        assert one["batch_size"] in (2, 4)
        assert 0 < one["memory_share"] == pytest.approx(one["memory"] / one["bare"], abs=2e-3)
        assert one["files"] > 0 and one["reading"] > 0
    assert command["command"] == "fedstats run" and command["images"] == pytest.approx(12 / command["seconds"], abs=0.5)


def test_what_does_not_begin_in_time_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main([*SMALL, "--images", "2", "--seconds", "0"])
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"left out after 0 s: random:tiny {precision}" for precision in gpu.PRECISIONS
    ]
