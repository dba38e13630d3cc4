import json
from pathlib import Path

import pytest
import torch

from fedstats_app.statistics import ClassMeanRows
from research.benchmarks import server_solve
from research.benchmarks.fedcof_rows import Size, fedcof_as_published, synthetic_rows
from tests.support.compare import absolute_difference
from tests.support.literal import fedcof, unit_rows


def test_synthetic_rows_are_what_a_federation_sends() -> None:
    size = Size(clients=60, classes=20, rows=500, dim=8)
    class_ids, counts, means = synthetic_rows(size, seed=0)
    assert class_ids.shape == counts.shape == (500,) and means.shape == (500, 8)
    assert means.dtype == torch.float32 and bool((means >= 0).all())
    presence = torch.bincount(class_ids, minlength=20)
    assert int(presence.max()) <= 60 and int(presence.max()) > 3 * int(presence.min())
    assert 0.3 < float((counts == 1).float().mean()) < 0.6 and int(counts.max()) > 3
    again, other = synthetic_rows(size, seed=0), synthetic_rows(size, seed=1)
    assert torch.equal(again[2], means) and not torch.equal(other[2], means)


def test_more_rows_than_clients_and_classes_allow_are_refused() -> None:
    with pytest.raises(ValueError, match="rows must be at most clients x classes = 6, got 7"):
        Size(clients=2, classes=3, rows=7, dim=4)


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
