"""The sum that the benchmark unmasks is that of the survivors: it compares them itself."""

import json

import pytest

from research.benchmarks import secure_sums


@pytest.mark.parametrize("more", [["--no-gram"], []])
def test_a_small_run(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    secure_sums.main(["--clients", "10", "--classes", "4", "--dim", "16", *more])
    found = json.loads(capsys.readouterr().out)
    assert (found["lost"], found["degree"]) == (3, 9)
    assert found["client_seconds"] > 0 and found["megabytes_up"] > 0.003  # shares for nine neighbours
