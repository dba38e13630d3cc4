"""Sites with several labels a sample answer from releases, under floors that hold over all of them."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from flwr.app import Context, RecordDict

from fedstats_app import client_app
from fedstats_app.cli import main
from fedstats_app.heads import LinearHead
from fedstats_app.heads.leave_one_out import ClientLeftOut
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.testing import instruction
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.evaluation import evaluation_content
from fedstats_app.wire.release import read_release
from fedstats_app.wire.target_evaluation import read_target_evaluation_reply
from tests.support.made_targets import ATTRIBUTES, write_attributes
from tests.support.simulation import head_bytes, read_json, simulate

SETTINGS = "backbone='random:tiny' input-size=16 plots=false"
SITES = ("east", "north", "south")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give three sites' tables of images with 14 labels each, a tenth of them unknown, and a test set."""
    folder = tmp_path_factory.mktemp("sites")
    write_attributes(folder / "whole", 360)
    table = pq.read_table(folder / "whole" / "train-0.parquet")
    for place, site in enumerate(SITES):
        (folder / site).mkdir()
        pq.write_table(table.slice(120 * place, 120), folder / site / "train-0.parquet")
    return folder


def config(sites: Path, site: str, labels: str = ",".join(ATTRIBUTES), floor: int = 4) -> dict[str, object]:
    return {
        "data-path": str(sites / site),
        "client-name": site,
        "state-dir": str(sites / "state"),
        "label-columns": labels,
        "min-class-count": floor,
        "min-gram-samples": 0,
    }


def release(sites: Path, site: str, out: Path, labels: str = ",".join(ATTRIBUTES)) -> Path:
    own = {key: value for key, value in config(sites, site, labels).items() if key != "data-path"}
    node = " ".join(f"{key}={value!r}" for key, value in own.items())
    words = ["release", str(sites / site), "--out", str(out), "-c", f"{SETTINGS} method='fedncm,fed3r,fedcgs'"]
    assert main([*words, "--node-config", node]) == 0
    return out


def test_the_fewest_samples_behind_a_sum_are_those_of_a_label(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = release(sites, "east", tmp_path / "east.fedstats")
    targets = read_release(path).received.statistics.targets
    assert targets is not None
    groups = torch.cat([targets.sums, targets.known - targets.sums, 120 - targets.known])
    fewest = int(groups[groups > 0].min())
    assert 4 <= fewest < 50 and f"the mean of the fewest is of {fewest};" in capsys.readouterr().out


def test_a_number_that_all_but_few_samples_share_is_not_released(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pq.read_table(sites / "east" / "train-0.parquet").select(["image"])
    rare = [3.0 if row == 7 else 0.0 for row in range(len(table))]
    (tmp_path / "rare").mkdir()
    pq.write_table(table.append_column("stage", [rare]), tmp_path / "rare" / "train-0.parquet")
    words = ["release", str(tmp_path / "rare"), "--out", str(tmp_path / "rare.fedstats"), "-c", SETTINGS]
    assert main([*words, "--node-config", f"target-column='stage' state-dir='{tmp_path}'"]) == 2
    assert "no class with as many samples as it must have to leave" in capsys.readouterr().err


def test_a_merge_gives_the_bytes_of_the_run_over_the_nodes(sites: Path, tmp_path: Path) -> None:
    test = {"test_dataset": f"parquet:{sites / 'whole'}", "label_columns": ",".join(ATTRIBUTES)}
    nodes = [config(sites, site) for site in SITES]
    over_nodes = simulate(tmp_path, node_configs=nodes, method="fedncm,fed3r,fedcgs", **test)
    results = read_json(over_nodes, "results.json")
    assert results["num_clients_merged"] == 3 and results["methods"]["fed3r"]["targets"]["mean_auroc"] > 0.55

    files = [str(release(sites, site, tmp_path / f"{site}.fedstats")) for site in SITES]
    words = ["merge", *files, "--out", str(tmp_path / "ours"), "-c", SETTINGS]
    assert main([*words, "--test", str(sites / "whole"), "-c", f"label-columns='{','.join(ATTRIBUTES)}'"]) == 0
    # Thresholds are chosen on the sites' samples, which files have not.
    assert head_bytes(tmp_path / "ours")["fedncm"] == head_bytes(over_nodes)["fedncm"]


def labels_in(path: Path) -> set[str]:
    made = read_release(path)
    targets = made.received.statistics.targets
    assert targets is not None and made.fewest >= 4
    return {name for name, known in zip(made.request.class_names, targets.known.tolist(), strict=True) if known}


def test_a_release_leaves_out_the_labels_that_would_tell_of_few(
    sites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = release(sites, "east", tmp_path / "east.fedstats")
    assert set() < labels_in(path) < set(ATTRIBUTES)
    assert read_release(path).received.num_suppressed_classes == len(ATTRIBUTES) - len(labels_in(path))
    assert "120 of 14 labels" in capsys.readouterr().out


def test_a_further_release_of_other_labels_withholds_what_would_tell_of_few(sites: Path, tmp_path: Path) -> None:
    """A label that differs from one released before in a single sample would give this sample away."""
    (tmp_path / "site").mkdir()
    table = pq.read_table(sites / "east" / "train-0.parquet")
    before = (np.array(table["for feet"].to_pylist()) == 1).astype(int)
    after = before.copy()
    after[np.flatnonzero(before)[0]] = 0
    other = 1 - np.arange(len(before)) % 2
    for name, values in (("feet before", before), ("feet after", after), ("other", other)):
        table = table.append_column(name, [values.tolist()])
    pq.write_table(table, tmp_path / "site" / "train-0.parquet")
    assert labels_in(release(tmp_path, "site", tmp_path / "1.fedstats", "feet before")) == {"feet before"}
    assert labels_in(release(tmp_path, "site", tmp_path / "2.fedstats", "feet after,other")) == {"other"}


@pytest.mark.parametrize("own_persons", [True, False])
def test_scores_of_training_samples_are_under_the_floor_of_their_persons(tmp_path: Path, own_persons: bool) -> None:
    """Nothing is held out, and of five persons any two have up to 40 of 100 samples."""
    table = pq.read_table(
        Path(write_attributes(tmp_path / "made", 100, unknown=0.0)["dataset"][8:]) / "train-0.parquet"
    )
    table = table.append_column("who", [[str(number if own_persons else number % 5) for number in range(100)]])
    (tmp_path / "site").mkdir()
    pq.write_table(table, tmp_path / "site" / "train-0.parquet")
    node = {**config(tmp_path, "site", "worn on top", floor=2), "person-column": "who", "max-per-person": 20}
    spec = StatisticsSpec(gram=True, targets="labels")
    request = StatisticsRequest(1, spec, wire_dtype="float64", class_names=("worn on top",))
    head = LinearHead(100 * torch.randn(1, 32, generator=torch.Generator().manual_seed(0)), torch.zeros(1))
    content = evaluation_content(request, {"x": head}, ClientLeftOut())
    settings = AppConfig.of(backbone="random:tiny", input_size=16).to_run_config()
    reply = client_app.app(instruction(content, "evaluate.heads"), Context(1, 4, node, RecordDict(), settings))
    bins = read_target_evaluation_reply(reply, "labels", 1, ("x",))["x"].histograms.filled
    fewest = int(bins[:, 2:][bins[:, 2:] > 0].min())
    assert 2 <= fewest < 21 if own_persons else fewest >= 21
