"""A round's seconds are those after the first few."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.benchmarks.rounds import WARM_UP, main, of_a_round


def test_the_median_of_the_rounds_after_the_first(tmp_path: Path) -> None:
    seconds = [100.0] * WARM_UP + [3.0, 1.0, 2.0]
    lines = [json.dumps({"round": number, "seconds": one}) for number, one in enumerate(seconds, 1)]
    (tmp_path / "rounds.jsonl").write_text("\n".join(lines))
    assert of_a_round(tmp_path) == 2.0


def test_too_few_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", str(WARM_UP)])
    assert "--rounds must be more than 5" in capsys.readouterr().err
