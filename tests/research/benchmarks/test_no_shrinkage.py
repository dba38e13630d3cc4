"""FedCOF without shrinkage, both ways: the same head where the matrix has an inverse that float32 can hold."""

import re

import pytest

from research.benchmarks.no_shrinkage import main
from tests.research.benchmarks.conftest import SETTINGS


def test_a_line_for_every_number_of_clients(capsys: pytest.CaptureFixture[str]) -> None:
    main([f"{SETTINGS} partitioner=iid", "--clients", "4", "40"])
    found = re.findall(r"^\| (\d+) \| (\d+) \| (\S+) \| (\S+) \|$", capsys.readouterr().out, re.MULTILINE)
    assert [line[:2] for line in found] == [("4", "40"), ("40", "377")]  # of 25 images a client some classes have none
    exact, published = float(found[1][2]), float(found[1][3])
    assert exact > 20.0 and exact == pytest.approx(published, abs=0.5)
