"""Runs on samples with several labels, or numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstats_app.cli import main
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


def by_label(folder: Path, method: str) -> dict[str, torch.Tensor]:
    head, header = read_head(folder / "heads" / f"{method}.safetensors")
    return dict(zip(json.loads(header["class-names"]), head.weight, strict=True))


def test_other_labels_of_the_same_samples_come_later_without_a_second_gram_matrix(
    tmp_path: Path, made: dict[str, str]
) -> None:
    """A run that asks for half of the labels, extended by the other half, has the bits of one that asks for all."""
    names = list(ATTRIBUTES)
    same = {"dataset": made["dataset"], "num_clients": 3, "partitioner": "iid", "exact_sums": True, "method": "fed3r"}
    first = simulate(tmp_path / "1", **same, label_columns=",".join(names[:7]))
    later = simulate(tmp_path / "2", **same, label_columns=",".join(names[7:]), extend=str(first))
    once = simulate(tmp_path / "3", **same, label_columns=",".join(names))
    found, expected = by_label(later, "fed3r"), by_label(once, "fed3r")
    assert found.keys() == set(names)
    for name in names:
        assert torch.equal(found[name], expected[name]), name
    sent = [read_json(run, "results.json")["wire_bytes_received"] for run in (first, later)]
    assert sent[1] < sent[0]
    stranger = {**same, "num_clients": 4, "label_columns": ",".join(names[7:]), "extend": str(first)}
    with pytest.raises(RuntimeError, match=r"0 of 4 sites were merged, 1 are needed.* its samples are not in the"):
        simulate(tmp_path / "4", **stranger)


def test_labels_are_renamed_and_dropped_afterwards(
    tmp_path: Path, made: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulate(tmp_path, **made, num_clients=2, method="fedncm,fed3r")
    words = ["edit", str(run), "--rename", "worn=clothing", "--drop", "carried", "--output-dir", str(tmp_path / "new")]
    assert main(words) == 0
    (folder,) = (tmp_path / "new").iterdir()
    before, after = by_label(run, "fed3r"), by_label(folder, "fed3r")
    assert list(after) == [name if name != "worn" else "clothing" for name in ATTRIBUTES]
    assert torch.equal(after["clothing"], before["worn"]) and not after["carried"].any()
    old, new = (read_head(made / "heads" / "fed3r.safetensors")[0].bias for made in (run, folder))
    known = torch.tensor([name != "carried" for name in ATTRIBUTES])
    assert torch.equal(new[known], old[known])  # sites have found the labels' thresholds, which stay
    page = (folder / "report.html").read_text()
    assert "solved again (worn renamed clothing; class carried removed)" in page
    assert main(["edit", str(run), "--merge", "laces,buttons"]) == 2
    assert "labels cannot be merged" in capsys.readouterr().err


def test_secure_sums_of_labels_have_the_bits_of_exact_sums(tmp_path: Path, made: dict[str, str]) -> None:
    same = {**made, "num_clients": 5, "partitioner": "iid", "method": "fedncm,fedcgs"}
    clear = simulate(tmp_path / "1", **same, exact_sums=True, holdout_fraction=0)
    masked = simulate(tmp_path / "2", **same, secure_sums="on", shuffle_seed=3)
    found, expected = heads(masked), heads(clear)
    for name in ("fedncm", "fedcgs"):
        assert torch.equal(found[name], expected[name]), name
    # Its thresholds: by a second sum, of the scores of samples left out of it.
    biases = [read_head(folder / "heads" / "fedcgs.safetensors")[0].bias for folder in (masked, clear)]
    assert torch.equal(*biases) and bool((biases[0] != 0).all())
    assert read_json(masked, "results.json")["methods"]["fedcgs"]["targets"]["mean_auroc"] > 0.8
    for line in (masked / "clients.jsonl").read_text().splitlines():
        assert json.loads(line)["num_examples"] == 0
