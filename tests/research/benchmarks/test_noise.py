"""Accuracy against epsilon: from data and from files of features, as lines, tables and a picture."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from research.benchmarks import noise


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Two classes, far apart, of 300 samples each; the other labels have four."""
    draw = np.random.default_rng(0)
    for part, number in (("train", 600), ("test", 100)):
        y = np.arange(number) % 2
        x = draw.normal(size=(number, 6)) * 0.3 + np.eye(6)[y] + 1.0
        np.savez(tmp_path / f"apart.{part}.npz", x=x.astype(np.float32), y=y, fine=np.arange(number) % 4)
    return tmp_path / "apart.train.npz"


def test_a_file_of_features_at_two_epsilons(measured: Callable[..., list[Any]], kept: Path, tmp_path: Path) -> None:
    picture = tmp_path / "noise.png"
    options = ("--epsilons", "0.01", "8", "--seeds", "3", "--constants", "--picture", str(picture))
    low, high = measured(noise, noise.Noisy, str(kept), *options)
    assert (low.num_samples, low.num_classes, low.dim) == (600, 2, 6) and low.delta == 600**-1.1
    assert np.mean(high.accuracy["Fed3R"]) > 90 > np.mean(low.accuracy["Fed3R"])
    assert high.exact["Fed3R"] - np.mean(high.accuracy["Fed3R"]) < 5
    assert low.signal < 1 < 5 < high.signal and {"mean 2 %", "Fed3R, shares"} <= high.accuracy.keys()
    assert picture.stat().st_size > 5000


def test_the_audit_prints_what_was_promised_and_found(capsys: pytest.CaptureFixture[str]) -> None:
    noise.main(["--audit", "100", "--epsilons", "1"])
    line = json.loads(capsys.readouterr().out)
    assert line["lower_bound"] <= 1.0 == line["epsilon"] and line["runs"] == 100
