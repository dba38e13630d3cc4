"""Runs that add clients and classes to an earlier one, through the real ServerApp and ClientApp."""

from pathlib import Path

import pytest
import torch

from fedstats_app.methods import METHODS
from fedstats_app.report.head_file import read_head
from fedstats_app.report.statistics_file import load_statistics
from fedstats_app.server.removal import remove_clients
from fedstats_app.testing import FIRST_NODE_ID
from tests.support.compare import relative_difference
from tests.support.simulation import clients, read_json, simulate, site_folder

Nodes = list[dict[str, object]]
SITES = {"a": ("ant", "bee", "dog"), "b": ("dog", "ant"), "c": ("bee", "cat")}  # cat comes with c, in the middle


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    sites = tmp_path_factory.mktemp("sites")
    return [
        {"data-path": site_folder(sites / name, classes, seed=seed, images=12)}
        for seed, (name, classes) in enumerate(SITES.items())
    ]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, nodes: Nodes) -> Path:
    """Give the run of two nodes that others extend; it is only read."""
    return simulate(tmp_path_factory.mktemp("first"), node_configs=nodes[:2])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, nodes: Nodes) -> Path:
    """Give the run of all nodes at once; it is only read."""
    return simulate(tmp_path_factory.mktemp("whole"), node_configs=nodes)


def assert_same(folder: Path, whole: Path) -> None:
    """Compare two runs: statistics within 1e-12, and every prediction for random features."""
    found, expected = load_statistics(folder), load_statistics(whole)
    assert found.class_names == expected.class_names and len(found.clients) == len(expected.clients)
    a, b = found.total.summed(), expected.total.summed()
    assert torch.equal(a.class_counts, b.class_counts) and relative_difference(a.class_sums, b.class_sums) < 1e-12
    assert a.gram is not None and b.gram is not None and relative_difference(a.gram, b.gram) < 1e-12
    assert torch.equal(found.total.rows().counts.sort().values, expected.total.rows().counts.sort().values)
    scale = float(found.total.summed().mean.norm())
    features = scale * torch.rand(2000, 32, generator=torch.Generator().manual_seed(0))
    for method in METHODS:
        head, metadata = read_head(folder / "heads" / f"{method}.safetensors")
        other, expected_metadata = read_head(whole / "heads" / f"{method}.safetensors")
        assert torch.equal(head.predict(features), other.predict(features)), method
        assert all(metadata[key] == expected_metadata[key] for key in ("class-names", "num-examples", "num-clients"))


def test_nodes_that_come_again_are_counted_once_and_evaluate(
    tmp_path: Path, nodes: Nodes, first: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = simulate(tmp_path, node_configs=nodes, extend=str(first))

    outcomes = clients(second)
    assert [one["outcome"] for one in outcomes] == ["known", "known", "merged"]
    assert outcomes[1]["reason"].endswith(f"as client {FIRST_NODE_ID + 1} of run 7")
    assert "2 sites were in the statistics to extend already" in capsys.readouterr().out
    assert_same(second, whole)
    results = read_json(second, "results.json")
    assert (results["num_clients_merged"], results["num_clients_known"]) == (1, 2)
    expected = read_json(whole, "results.json")
    assert results["num_test_examples"] == expected["num_test_examples"]
    assert results["methods"]["fed3r"]["accuracy"] == expected["methods"]["fed3r"]["accuracy"]
    before = {"num_clients": 2, "num_examples": 35, "class_names": ["ant", "bee", "dog"]}
    assert results["extends"] == {"run_folder": str(first), **before}


def test_without_statistics_there_is_nothing_to_extend(tmp_path: Path, nodes: Nodes) -> None:
    with pytest.raises(FileNotFoundError, match="no statistics at /nowhere"):
        simulate(tmp_path, node_configs=nodes[2:], extend="/nowhere")


def test_a_client_whose_data_changed_is_replaced_and_not_counted_twice(tmp_path: Path, nodes: Nodes) -> None:
    """By a name that its owner gives: refused beside what it sent before, and merged where that was removed."""
    options: dict[str, object] = {"save_statistics": "clients", "min_clients": 1, "method": "fedncm,fed3r"}
    named = [{**node, "client-name": f"site {letter}"} for letter, node in zip("abc", nodes, strict=True)]
    first = simulate(tmp_path, node_configs=named[:2], **options)
    changed = {"data-path": site_folder(tmp_path / "changed", SITES["a"], seed=5, images=20), "client-name": "site a"}
    assert [one.name for one in load_statistics(first).clients] == ["site a", "site b"]

    beside = simulate(tmp_path, node_configs=[changed, named[2]], extend=str(first), **options)
    outcomes = {one["client"]: one for one in clients(beside)}
    assert outcomes[FIRST_NODE_ID + 1]["outcome"] == "merged" and outcomes[FIRST_NODE_ID]["outcome"] == "rejected"
    assert f"client-name 'site a' is that of client {FIRST_NODE_ID} of run 7" in outcomes[FIRST_NODE_ID]["reason"]
    assert f"--client 7/{FIRST_NODE_ID}" in outcomes[FIRST_NODE_ID]["reason"]

    removal = remove_clients(first, [f"7/{FIRST_NODE_ID}"])
    replaced = simulate(tmp_path, node_configs=[changed, named[2]], extend=str(removal.folder), **options)
    assert [one.name for one in load_statistics(replaced).clients] == ["site b", "site a", "site c"]
    never = simulate(tmp_path, node_configs=named[1:2], **options)
    expected = simulate(tmp_path, node_configs=[changed, named[2]], extend=str(never), **options)
    for name in ("fedncm", "fed3r"):
        one, other = (read_head(run / "heads" / f"{name}.safetensors")[0] for run in (replaced, expected))
        assert torch.equal(one.weight, other.weight), name


def test_of_two_clients_of_one_name_none_is_counted(tmp_path: Path, nodes: Nodes) -> None:
    """Nothing says which of them is the impostor, and the one with the smaller id is no better than the other."""
    names = ("x", "x", "y")
    named = [{**node, "client-name": name} for node, name in zip(nodes, names, strict=True)]
    folder = simulate(tmp_path, node_configs=named, min_clients=1)
    assert [(one["client"], one["outcome"]) for one in clients(folder)] == [(FIRST_NODE_ID + 2, "merged")]
    refused = read_json(folder, "results.json")["refused_nodes"]
    assert refused.keys() == {str(FIRST_NODE_ID), str(FIRST_NODE_ID + 1)}
    assert all("its client-name 'x' is that of nodes" in reason for reason in refused.values())
