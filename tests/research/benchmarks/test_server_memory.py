"""The benchmark at a small size: all clients are merged, and the line has all numbers."""

import json
import sys
from pathlib import Path

import pytest

from research.benchmarks.server_memory import feature_dim_for, main

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not Path("/proc/self/clear_refs").exists(),
    reason="only Linux keeps a peak of resident memory that can be reset",
)


def test_all_are_merged_and_the_result_says_what_it_took(capfd: pytest.CaptureFixture[str]) -> None:
    main(["--replies", "40", "--megabytes", "0.05"])

    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert result["replies"] == result["merged"] == 40
    assert result["feature_dim"] == 158 and 0.045 < result["reply_megabytes"] < 0.06
    # 40 replies are 2 MB in all: what is above is the interpreter's own.
    assert 0 <= result["increase_megabytes"] < 100 and result["limit"] == 250
    assert result["seconds"] > 0


@pytest.mark.parametrize("megabytes", [0.01, 1.0, 6.5])
def test_the_dimension_gives_the_size(megabytes: float) -> None:
    dim = feature_dim_for(megabytes)

    assert 4 * dim * (dim + 1) / 2 / 1e6 == pytest.approx(megabytes, rel=0.05)


@pytest.mark.parametrize("arguments", [["--replies", "0"], ["--megabytes", "0"], ["--megabytes", "nan"]])
def test_sizes_out_of_range_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "--replies must be at least 1 and --megabytes lie in (0, 100]" in capsys.readouterr().err
