"""Runs on samples with several labels, or numbers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedstats_app.report.head_file import read_head
from tests.support.made_targets import ATTRIBUTES, write_attributes
from tests.support.simulation import read_json, simulate


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_attributes(tmp_path_factory.mktemp("attributes"))


def heads(folder: Path) -> dict[str, torch.Tensor]:
    return {path.stem: read_head(path)[0].weight for path in sorted((folder / "heads").glob("*.safetensors"))}


def test_any_split_gives_the_same_heads_of_several_labels(tmp_path: Path, made: dict[str, str]) -> None:
    few, many = (simulate(tmp_path, **made, num_clients=number, exact_sums=True) for number in (2, 7))
    found, others = heads(few), heads(many)
    assert found.keys() == others.keys() == {"fedncm", "fed3r", "fedcgs", "fedroot"}
    for name in ("fedncm", "fed3r", "fedcgs"):
        assert torch.equal(found[name], others[name]), name
    results = read_json(few, "results.json")
    assert results["evaluated_on"] == "server" and results["num_test_examples"] == 100
    measures = results["methods"]["fed3r"]["targets"]
    assert measures["mean_auroc"] > 0.8 and len(measures["per_target_f1"]) == len(ATTRIBUTES)
    assert results["advice"]["method"] in found


def test_sites_score_what_they_keep_aside(tmp_path: Path, made: dict[str, str]) -> None:
    whole = {**made, "dataset": made["dataset"] + "/train-0.parquet"}
    results = read_json(simulate(tmp_path, **whole, num_clients=3, method="fed3r,fedncm"), "results.json")
    assert results["evaluated_on"] == "clients" and results["num_test_examples"] == 60
    assert results["methods"]["fed3r"]["targets"]["mean_auroc"] > 0.7


def test_numbers_are_predicted(tmp_path: Path, made: dict[str, str]) -> None:
    numbers = {"dataset": made["dataset"], "target_column": "size"}
    results = read_json(simulate(tmp_path, **numbers, num_clients=3), "results.json")
    assert set(results["methods"]) == {"fed3r", "fedroot"}
    measures = results["methods"]["fed3r"]["targets"]
    assert measures["mean_r2"] > 0.3 and 0.75 < measures["mean_within_interval"] <= 1.0


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"method": "fed3r,fedcof"}, "fedcof has no head of labels: take fed3r"),
        ({"fine_tune": "probe"}, "fine-tune: not for several labels"),
    ],
)
def test_what_has_no_head_of_labels_refuses_by_name(
    tmp_path: Path, made: dict[str, str], asked: dict[str, str], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        simulate(tmp_path, **made, **asked)


def test_a_site_withholds_labels_that_would_tell_of_few_samples(tmp_path: Path, made: dict[str, str]) -> None:
    nodes = [{"partition-id": node, "num-partitions": 2, "min-class-count": 5} for node in range(2)]
    folder = simulate(tmp_path, node_configs=nodes, **made, num_clients=2, partitioner="iid", method="fed3r")
    open_run = simulate(tmp_path, **made, num_clients=2, partitioner="iid", method="fed3r")
    rows = [
        {name for name, row in zip(ATTRIBUTES, heads(run)["fed3r"], strict=True) if row.any()}
        for run in (folder, open_run)
    ]
    assert set() < rows[0] < rows[1] == set(ATTRIBUTES)
    assert read_json(folder, "results.json")["policy"]["num_with_suppressed_classes"] == 2
    assert np.isfinite(read_json(folder, "results.json")["methods"]["fed3r"]["targets"]["micro_f1"])
