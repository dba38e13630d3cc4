import json
from pathlib import Path

import pytest

from fedstats_app.statistics import ClassMeanRows
from research.benchmarks import server_solve
from research.benchmarks.fedcof_rows import Size, fedcof_as_published, synthetic_rows
from tests.support.compare import absolute_difference
from tests.support.literal import fedcof, unit_rows


def test_the_papers_side_computes_the_papers_formula() -> None:
    class_ids, counts, means = synthetic_rows(Size(clients=30, classes=6, rows=100, dim=12), seed=3)
    head = fedcof_as_published(class_ids, counts, means, 7, gamma=1.0)  # one class is absent
    expected = fedcof(ClassMeanRows(class_ids, counts, means, 7), 1.0)
    assert absolute_difference(head, unit_rows(expected.raw_weight)) <= 2e-5


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_both_sides_run_in_their_own_process_and_agree(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--clients", "40", "--classes", "30", "--rows", "600", "--dim", "64"]
    server_solve.main(arguments)
    measured = json.loads(capsys.readouterr().out)
    size = {"clients": 40, "classes": 30, "rows": 600, "dim": 64, "shrinkage": 1.0}
    assert {key: measured[key] for key in size} == size
    for side in server_solve.SIDES:
        assert measured[f"{side}_seconds"] > 0 and measured[f"{side}_peak_mb"] >= 0
    assert measured["speedup"] == pytest.approx(measured["papers_seconds"] / measured["ours_seconds"])
    assert 0 < measured["max_weight_difference"] <= 1e-4  # float32 against float64: never quite equal
