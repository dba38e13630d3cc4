from __future__ import annotations

import pytest

from research.benchmarks import engines

pytest.importorskip("openvino", reason="the extra `fast` is not installed")
SMALL = ["--networks", "tiny", "--input-size", "16", "--turns", "1", "--engines", "torch", "openvino"]


@pytest.mark.parametrize("what", [["forward", "--batches", "1"], ["client", "--images", "3", "--pixels", "48"]])
def test_rates_of_every_engine_are_printed_against_the_first(
    what: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    engines.main([*what, *SMALL])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("tiny")]
    assert [line[1] for line in lines] == ["torch", "openvino"] + ["reading"] * (what[0] == "client")
    assert lines[0][-2] == "1.00" and all(float(line[2]) > 0 for line in lines)


def test_heads_of_one_engine_do_not_differ_from_themselves() -> None:
    experiment = "backbone='random:tiny' input-size=16 partition.samples-per-class=5"
    lines = list(engines.heads(experiment, ["torch", "openvino"]))
    assert len(lines) == 6 and all("0.00 of 1,000" in line for line in lines[:3])
