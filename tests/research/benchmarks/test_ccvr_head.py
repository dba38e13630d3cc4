"""CCVR's head trains on: the run that takes its file starts at the accuracy that the command said."""

import re
from pathlib import Path

import pytest

from research.benchmarks import ccvr_head
from tests.research.benchmarks.conftest import FEW
from tests.support.simulation import rounds, simulate


def test_a_training_starts_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ccvr.safetensors"
    ccvr_head.main([f"{FEW} num-clients=5 seed=1", str(file)])
    said = re.search(r"CCVR of (\d) clients: ([\d.]+) %", capsys.readouterr().out)
    assert said is not None and float(said[2]) > 20.0  # of ten classes
    settings = {"partitioner": "dirichlet", "partition.samples-per-class": 12, "num_clients": 5, "seed": 1}
    training = {"method": "fedncm", "input_size": 8, "fine_tune": "probe", "start_head": str(file)}
    folder = simulate(tmp_path, **settings, **training, num_server_rounds=1)
    assert 100 * rounds(folder, "file-probe")[0]["accuracy"] == pytest.approx(float(said[2]), abs=0.006)
