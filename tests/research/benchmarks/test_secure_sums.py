"""The sums that the benchmark unmasks are those of the survivors: it compares them itself."""

import json

import pytest

from research.benchmarks import products, secure_sums
from tests.research.benchmarks.conftest import FEW


@pytest.mark.parametrize("gram", ["none", "triangle", "exact"])
def test_a_small_run(gram: str, capsys: pytest.CaptureFixture[str]) -> None:
    secure_sums.main(["--clients", "10", "--classes", "4", "--dim", "16", "--gram", gram])
    found = json.loads(capsys.readouterr().out)
    assert (found["lost"], found["degree"]) == (3, 9)
    assert found["client_seconds"] > 0 and found["megabytes_up"] > 0.003  # shares for nine neighbours


def test_products_lose_less_the_more_there_are_and_are_sent_in_fewer_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    products.main([FEW])
    found = {one.pop("gram"): one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(found) == ["triangle", "exact", "means-1", "means-2", "means-3"]
    assert abs(found["triangle"]["fed3r"] - found["exact"]["fed3r"]) <= 0.02
    sizes = [found[f"means-{number}"]["megabytes"] for number in (1, 2, 3)]
    assert sizes == sorted(sizes) and sizes[0] < found["exact"]["megabytes"]
