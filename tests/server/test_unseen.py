"""Accuracy at a site that is not in the head."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedstats_app.data import load_dataset
from fedstats_app.methods import display_name
from fedstats_app.report.classifier import load
from fedstats_app.report.run_record import RunRecord
from fedstats_app.report.wording import warnings
from tests.support.made_targets import write_attributes
from tests.support.simulation import nodes_of, read_json, simulate, site_folder

CLASSES = ("ant", "bee", "cat")
OPTIONS: dict[str, Any] = {"holdout_fraction": 0.0, "min_clients": 1}


def found(folder: Path) -> dict[str, Any]:
    entry: dict[str, Any] = read_json(folder, "results.json")["unseen_site"]
    return entry


@pytest.fixture
def nodes(tmp_path: Path) -> list[Mapping[str, object]]:
    """Return four sites, of which the last has two classes exchanged."""
    made = nodes_of(tmp_path, "abcd", CLASSES)
    ant, bee = (tmp_path / "d" / name for name in CLASSES[:2])
    ant.rename(tmp_path / "kept"), bee.rename(ant), (tmp_path / "kept").rename(bee)
    return made


@pytest.mark.parametrize("method", ["fedncm", "fed3r", "fedcof", "fedcgs", "fedroot"])
def test_each_site_judges_the_head_of_a_run_without_it(
    tmp_path: Path, nodes: list[Mapping[str, object]], method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = found(whole := simulate(tmp_path, node_configs=nodes, method=method, **OPTIONS))
    terminal = capsys.readouterr().out.replace("\n  ", " ")
    right = {}
    for place, node in enumerate(nodes):
        rest = [other for other in nodes if other is not node]
        classifier = load(simulate(tmp_path, node_configs=rest, method=method, **OPTIONS), method)
        data = load_dataset(f"folder:{node['data-path']}", "train")
        wanted = [data.class_names[label] for label in data.labels]
        said = classifier.predict([data.sample(index) for index in range(len(data))])
        right[place] = sum(name == true for name, true in zip(said, wanted, strict=True)) / len(data)
    by_client = list(entry["by_client"].values())
    assert by_client == pytest.approx(list(right.values())) and right[3] < 0.5 < right[0]
    assert entry["mean"] == pytest.approx(sum(by_client) / 4) and entry["minimum"] == min(by_client)
    assert (entry["method"], entry["num_clients"], entry["num_examples"]) == (method, 4, 96)
    sentence = f"At a site that it has not seen, {display_name(method)} is right on {100 * entry['mean']:.2f} %"
    page = (whole / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert sentence in terminal and sentence in page
    run = RunRecord.read(whole)
    for bounds, number in (([0.9, 0.99], 1), ([0.85, 0.99], 0)):
        tested = {method: {**run.methods[method], "accuracy": 0.95, "accuracy_interval": bounds}}
        said = warnings(replace(run, results={**run.results, "methods": tested}))
        assert sum("A new site should expect that, not 90.0 to 99.0 %" in line for line in said) == number


def test_a_site_whose_owner_allows_no_more_heads_is_left_out_by_name(
    tmp_path: Path, nodes: list[Mapping[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes[1] = {**nodes[1], "max-heads-scored": 1, "client-name": "Nord"}
    entry = found(simulate(tmp_path, node_configs=nodes, method="fed3r", **OPTIONS))
    assert entry["num_clients"] == 3 and len(entry["by_client"]) == 3
    out = capsys.readouterr().out.replace("\n  ", " ")
    assert "site Nord did not judge a head without it: RefusedByPolicy: " in out and "max-heads-scored" in out


def test_a_class_that_one_site_alone_has_is_wrong_there(tmp_path: Path, nodes: list[Mapping[str, object]]) -> None:
    site_folder(tmp_path / "b", ("dog",), seed=7)
    entry = found(simulate(tmp_path, node_configs=nodes[:2], method="fed3r", **OPTIONS))
    assert list(entry["by_client"].values()) == [1.0, 0.75]


def test_clients_of_a_simulation_are_sites_if_a_column_makes_them(tmp_path: Path) -> None:
    for seed, domain in enumerate(("art", "photo", "sketch")):
        site_folder(tmp_path / "data" / domain, CLASSES, seed=seed, images=12)
    options = {"dataset": f"folder:{tmp_path / 'data'}", "folder_levels": "domain/class", "method": "fedncm"}
    natural = {"partitioner": "natural-id", "partition_column": "domain", "num_clients": 0}
    entry = found(simulate(tmp_path, **options, **natural, holdout_fraction=0.25))
    assert entry["num_examples"] == 3 * 3 * 9 and entry["worst"] in {"site art", "site photo", "site sketch"}
    assert found(simulate(tmp_path, **options, num_clients=3, partitioner="iid")) is None


@pytest.mark.parametrize("options", [{"secure_sums": "on"}, {"fewer": 1}])
def test_sites_that_are_not_known_apart_are_not_left_out(
    tmp_path: Path, nodes: list[Mapping[str, object]], options: dict[str, Any]
) -> None:
    sites = nodes[: options.pop("fewer", 4)]
    assert found(simulate(tmp_path, node_configs=sites, method="fed3r", **OPTIONS, **options)) is None


@pytest.mark.parametrize(("column", "measure"), [("label_columns", "mean average precision"), ("target_column", "R2")])
def test_several_labels_or_numbers_have_a_measure_of_all_samples(tmp_path: Path, column: str, measure: str) -> None:
    made = write_attributes(tmp_path / "made")
    [table] = map(pq.read_table, Path(made["dataset"].removeprefix("parquet:")).glob("train*"))
    for place in range(3):
        (tmp_path / f"site{place}").mkdir()
        pq.write_table(table[place::3], tmp_path / f"site{place}" / "train.parquet")
    own = {column.replace("_", "-"): made.get(column, "size")}
    nodes = [{"data-path": f"{tmp_path}/site{place}/train.parquet", **own} for place in range(3)]
    entry = found(simulate(tmp_path, node_configs=nodes, method="fed3r", **OPTIONS))
    assert entry["measure"] == measure and 0.2 < entry["value"] < 1.0 and entry["num_examples"] == len(table)
