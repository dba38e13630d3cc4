"""Node policy, class lists and the account of what left, through the real ServerApp and ClientApp."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict

from fedstats_app import client_app
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.base.option import ConfigError
from fedstats_app.client.site import Site
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.heads import LinearHead
from fedstats_app.methods import METHODS
from fedstats_app.report.head_file import read_head
from fedstats_app.report.statistics_file import load_statistics
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig
from fedstats_app.statistics import StatisticsSpec
from fedstats_app.testing import FIRST_NODE_ID, LocalGrid
from fedstats_app.training.model import TrainingRequest
from fedstats_app.wire import StatisticsRequest
from fedstats_app.wire.evaluation import evaluation_content
from tests.support.compare import relative_difference
from tests.support.simulation import clients, read_json, simulate, site_folder

Capture = pytest.CaptureFixture[str]
SIZES = {"a": {"ant": 12, "bee": 12, "zzyzx": 3}, "b": {"ant": 10, "bee": 11}, "c": {"bee": 9, "cat": 13}}


def site(root: Path, name: str, sizes: Mapping[str, int] | None = None, **options: object) -> dict[str, object]:
    """Make a site's folder and return its node-config."""
    path = root / name
    for seed, (label, images) in enumerate((sizes or SIZES[name]).items()):
        site_folder(path, (label,), seed=100 * ord(name[0]) + seed, images=images)
    return {"data-path": str(path), **{key.replace("_", "-"): value for key, value in options.items()}}


def sites(root: Path, names: str, sizes: Mapping[str, int] | None = None, **options: object) -> list[dict[str, object]]:
    return [site(root, name, sizes, **options) for name in names]


def disclosed(folder: Path, message: str = "") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "disclosure.jsonl").read_text().splitlines()]
    return [line for line in lines if message in ("", line["message"])]


@pytest.mark.parametrize("asked", [0, 3])
def test_a_rare_class_does_not_leave_even_by_name_whatever_the_server_asks_for(tmp_path: Path, asked: int) -> None:
    folder = simulate(tmp_path, node_configs=sites(tmp_path, "abc"), min_class_count=asked)

    assert read_json(folder, "config.json")["class_names"] == ["ant", "bee", "cat"]
    assert [one["num_suppressed_classes"] for one in clients(folder)] == [1, 0, 0]
    assert [one["classes_suppressed"] for one in disclosed(folder, "query.statistics")] == [1, 0, 0]
    assert read_json(folder, "results.json")["policy"]["num_with_suppressed_classes"] == 1
    for path in folder.rglob("*"):
        assert not path.is_file() or b"zzyzx" not in path.read_bytes(), path
    statistics = load_statistics(folder)
    assert statistics.class_names == ("ant", "bee", "cat") and int(statistics.total.rows().counts.min()) >= 5


def test_real_nodes_and_a_simulation_with_the_same_floor_make_the_same_heads(tmp_path: Path) -> None:
    """Three folders: as three nodes' own data, and as the partitions of one data set."""
    nodes = sites(tmp_path / "sites", "abc", min_gram_samples=0)  # as in a simulation
    whole = tmp_path / "whole"
    for name, sizes in SIZES.items():
        for label, images in sizes.items():
            for number in range(images):
                target = whole / "train" / label / name / f"{number}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes((tmp_path / "sites" / name / label / f"{number}.png").read_bytes())
    test = tmp_path / "test"
    site_folder(test / "train", ("ant", "bee", "cat"), seed=8)
    site_folder(test / "test", ("ant", "bee", "cat"), seed=9)
    options: dict[str, object] = {"test_dataset": f"folder:{test}", "input_size": 0, "wire_dtype": "float64"}

    real = simulate(tmp_path, node_configs=nodes, **options)
    split = {"partitioner": "natural-id", "partition_column": "subfolder", "num_clients": 3, "min_class_count": 5}
    simulated = simulate(tmp_path, dataset=f"folder:{whole}", **split, **options)

    for method in METHODS:
        head, _ = read_head(real / "heads" / f"{method}.safetensors")
        other, metadata = read_head(simulated / "heads" / f"{method}.safetensors")
        names = json.loads(metadata["class-names"])
        assert not other.present[names.index("zzyzx")]
        kept = torch.tensor([names.index(name) for name in ("ant", "bee", "cat")])
        assert relative_difference(other.weight[kept], head.weight) < 1e-6, method
        results = [read_json(folder, "results.json")["methods"][method] for folder in (real, simulated)]
        assert results[0]["accuracy"] == results[1]["accuracy"]
        assert results[0]["num_examples"] == results[1]["num_examples"]


def test_what_no_allowed_method_needs_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [site(tmp_path, "a", allowed_methods="fedncm,fedcof"), site(tmp_path, "b"), site(tmp_path, "c")]

    folder = simulate(tmp_path, node_configs=nodes)

    outcomes = clients(folder)
    assert [one["outcome"] for one in outcomes] == ["refused", "merged", "merged"]
    reason = "a Gram matrix: needed by none of this node's allowed-methods (fedncm, fedcof)"
    assert outcomes[0]["reason"] == f"RefusedByPolicy: {reason}"
    assert read_json(folder, "results.json")["policy"]["num_refused"] == 1 and reason in capsys.readouterr().out
    [left] = [one for one in disclosed(folder, "query.statistics") if one["client"] == outcomes[0]["client"]]
    assert left["fields"] == [] and reason in left["errors"][0]

    alone = simulate(tmp_path, node_configs=nodes, method="fedncm,fedcof")
    assert [one["outcome"] for one in clients(alone)] == ["merged"] * 3


def test_a_site_of_few_samples_is_in_every_head_and_said(tmp_path: Path) -> None:
    """About 21 samples of features of dimension 32 each: fewer than 2 d. Two owners let the Gram matrix leave."""
    nodes = [site(tmp_path, "a", min_gram_samples=0), site(tmp_path, "b"), site(tmp_path, "c", min_gram_samples=10)]

    folder = simulate(tmp_path, node_configs=nodes, method="fedncm,fed3r,fedcof,fedcgs,fedroot")

    outcomes = clients(folder)
    assert [one["outcome"] for one in outcomes] == ["merged"] * 3
    assert "in 32 dimensions, fewer than 2 d" in outcomes[0]["warning"]
    assert "too few samples for a Gram matrix" in outcomes[1]["warning"]
    sent = [{field["field"].split(".")[1] for field in one["fields"]} for one in disclosed(folder, "query.statistics")]
    assert [any("within" in name for name in one) for one in sent] == [True, False, True]
    assert read_json(folder, "results.json")["policy"]["num_warned"] == 3
    rows_only = simulate(tmp_path, node_configs=nodes, method="fedcof")
    assert [(one["outcome"], one["warning"]) for one in clients(rows_only)] == [("merged", "")] * 3


TRAINING = ("train", "train.losses", "train.mezo")
TRAINING += ("evaluate.model", "evaluate.mezo")


@pytest.mark.parametrize("kind", TRAINING)
def test_training_is_off_unless_the_owner_opens_it(tmp_path: Path, kind: str) -> None:
    closed, opened = (
        answer(site(tmp_path, name, **rules), kind) for name, rules in (("a", {}), ("b", {"train": True}))
    )

    assert closed.error.reason == "RefusedByPolicy: training is off on this node (train)"
    assert not opened.error.reason.startswith("RefusedByPolicy")


def test_a_run_that_trains_ends_before_any_statistics_and_names_the_sites(tmp_path: Path, capsys: Capture) -> None:
    nodes = [site(tmp_path, "a", client_name="Nord", train=True), site(tmp_path, "b", client_name="South")]

    for training in ({"fine_tune": "probe"}, {"fine_tune": "fedmezo"}):
        with pytest.raises(ConfigError, match="training is off at South: an owner opens it with train=true"):
            simulate(tmp_path, node_configs=nodes, **training)


def answer(node: Mapping[str, object], kind: str) -> Message:
    """Return what a node says to an empty message of a type."""
    grid = LocalGrid(client_app.app, [node], AppConfig().to_run_config())
    [reply] = grid.send_and_receive([Message(RecordDict(), dst_node_id=FIRST_NODE_ID, message_type=kind)])
    return reply


def test_heads_of_other_methods_are_not_scored_either(tmp_path: Path) -> None:
    """The server that asks is not ours: ours asks only who is in the heads."""
    settings = AppConfig.of(backbone="random:tiny", input_size=16).to_run_config()
    head = LinearHead(torch.zeros(2, 32), torch.zeros(2))
    for gram, refused in ((False, False), (True, True)):
        request = StatisticsRequest(2, StatisticsSpec(gram=gram), holdout=0.3, class_names=("ant", "bee"))
        content = evaluation_content(request, {"x": head})
        grid = LocalGrid(client_app.app, [site(tmp_path / str(gram), "b", allowed_methods="fedncm")], settings)
        [reply] = grid.send_and_receive([Message(content, dst_node_id=FIRST_NODE_ID, message_type="evaluate.heads")])
        assert reply.has_error() == refused
        assert not refused or reply.error.reason.startswith("RefusedByPolicy")


def test_a_handful_of_readable_samples_is_not_evaluated_in_training_either(tmp_path: Path) -> None:
    config = AppConfig.of(backbone="random:tiny", input_size=16)
    node = NodeConfig.from_node_config(site(tmp_path, "a", {"ant": 40, "bee": 40}))
    fingerprint = loaded_backbone(config.backbone_for(own_data=True)).fingerprint
    known = {"backbone_fingerprint": fingerprint, "class_names": ("ant", "bee")}
    request = TrainingRequest(2, "probe", holdout=0.25, **known)  # type: ignore[arg-type]
    counts = []
    for readable in (None, 5, 4):
        split = Site(config, node).split_for(request)
        for index in split.held_out[readable or len(split.held_out) :]:
            Path(node.data_path, split.dataset.sample_name(int(index))).write_bytes(b"no image")
        _, samples = Site(config, node).samples(request, held_out=True)
        counts.append(len(samples.labels))
    assert counts[0] >= 16 and counts[1:] == [5, 0]


def test_an_evaluation_names_no_class_of_few_samples(tmp_path: Path) -> None:
    """Of 40 and 8 images a fifth or so is held out: few of the second class."""
    nodes = [site(tmp_path, "a", {"ant": 40, "bee": 8}), site(tmp_path, "b", {"ant": 40, "bee": 9})]

    folder = simulate(tmp_path, node_configs=nodes, method="fedncm", holdout_fraction=0.25)

    result, results = read_json(folder, "results.json")["methods"]["fedncm"], read_json(folder, "results.json")
    assert result["per_class_accuracy"][0] is not None and result["per_class_accuracy"][1] is None
    assert 20 <= results["num_test_examples"] <= 24 and result["accuracy"] is not None
    # Of one class alone there are no other samples to rank it against.
    assert result["macro_auroc"] is None and result["per_class_specificity"][0] is None
    assert set(result["client_accuracy"]["by_client"]) == {str(FIRST_NODE_ID), str(FIRST_NODE_ID + 1)}
    for left in disclosed(folder, "evaluate.heads"):
        cells = [one for one in left["fields"] if one["field"] == "confusion.fedncm.cells"]
        assert cells[0]["shape"][0] <= 2  # true class ant only


def test_where_too_little_is_held_out_the_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulate(
        tmp_path, node_configs=sites(tmp_path, "ab", {"ant": 8, "bee": 8}), method="fedncm", holdout_fraction=0.1
    )

    assert "nothing was evaluated" in capsys.readouterr().out
    result = read_json(folder, "results.json")["methods"]["fedncm"]
    names = ("accuracy", "accuracy_interval", "macro_accuracy", "macro_f1", "macro_auroc", "client_accuracy")
    assert all(result[name] is None for name in names)


def test_what_left_each_site_is_written_down_message_by_message(tmp_path: Path) -> None:
    folder = simulate(tmp_path, node_configs=sites(tmp_path, "abc"))

    lines = disclosed(folder)
    assert {line["message"] for line in lines} == {"query.clients", "query.statistics", "evaluate.heads"}
    assert len(lines) == 9 and {line["run"] for line in lines} == {"7"}
    assert all(line["methods"] == list(METHODS) for line in lines)
    merged = {one["client"]: one["wire_bytes"] for one in clients(folder)}
    assert {line["client"]: line["bytes"] for line in disclosed(folder, "query.statistics")} == merged
    said = disclosed(folder, "query.clients")[0]["fields"]
    assert {"field": "node.class-names", "dtype": "str", "shape": [2], "bytes": len("antbee")} in said
    assert {one["field"] for one in said} == {"node.class-names", "node.trains"}


def test_a_run_that_fails_says_what_left_too(tmp_path: Path) -> None:
    nodes = sites(tmp_path, "ab", allowed_methods="fedncm")

    with pytest.raises(TooFewClients, match="RefusedByPolicy"):
        simulate(tmp_path, node_configs=nodes, method="fed3r")
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(disclosed(folder, "query.clients")) == 2
    assert [bool(line["errors"]) for line in disclosed(folder, "query.statistics")] == [True, True]


def test_a_wrong_policy_keeps_its_node_out_and_nobody_else(tmp_path: Path) -> None:
    nodes = [site(tmp_path, "a", min_class_count="five"), site(tmp_path, "b"), site(tmp_path, "c")]

    folder = simulate(tmp_path, node_configs=nodes, method="fedncm")

    assert len(clients(folder)) == 2
    [reason] = read_json(folder, "results.json")["refused_nodes"].values()
    assert "min-class-count: must be a whole number" in reason
