"""The attackers find what can be found, and the measures of likeness are the usual ones."""

import json
from pathlib import Path

import pytest

from research.benchmarks import inversion
from tests.research.benchmarks.conftest import SETTINGS


def test_a_run_prints_the_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "inversion.png"
    inversion.main(["--settings", SETTINGS, "--steps", "2", "--classes", "2", "--picture", str(picture)])
    *lines, _, _, one, _, _, _ = capsys.readouterr().out.splitlines()
    found = [json.loads(line) for line in lines]
    assert [line["num_samples"] for line in found] == [1, 2, 5, 20]
    # The features of the one sample are the mean.
    assert found[0]["named"] == 1.0 and one.endswith("| 100, 0.25 |")
    assert picture.stat().st_size > 5000
    with pytest.raises(SystemExit):
        inversion.main(["--steps", "0"])
