"""ServerApp and ClientApp together, without Ray: every stage, with the tiny backbone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import fedstats_app
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.base.option import ConfigError
from fedstats_app.client.site import Site
from fedstats_app.heads import solve_fedcof, solve_gaussian, solve_ncm, solve_ridge
from fedstats_app.report.head_file import read_head
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.testing import FIRST_NODE_ID
from tests.support.simulation import (
    central,
    clients,
    head_bytes,
    nodes_of,
    read_json,
    share_right,
    simulate,
    site_folder,
)


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("default"), wire_dtype="float64", plots=True)


def test_heads_are_those_of_the_centralised_data(default: Path) -> None:
    stats, rows = central(AppConfig.of(backbone="random:tiny", input_size=16, num_clients=10), list(range(10)))
    expected = {
        "fedncm": solve_ncm(stats),
        "fed3r": solve_ridge(stats, ridge_lambda="auto"),
        "fedcof": solve_fedcof(rows, shrinkage="auto"),
        "fedcgs": solve_gaussian(stats, covariance="within", shrinkage="auto"),
    }
    for name, head in expected.items():
        found, metadata = read_head(default / "heads" / f"{name}.safetensors")
        assert torch.allclose(found.weight, head.weight, rtol=1e-5, atol=1e-6 * float(head.weight.abs().max())), name
        assert metadata["regulariser"] == head.report.regulariser


def test_the_number_of_supernodes_and_the_order_of_replies_do_not_matter(default: Path, tmp_path: Path) -> None:
    assert head_bytes(simulate(tmp_path, nodes=7, shuffle_seed=3, wire_dtype="float64")) == head_bytes(default)


def test_failing_clients_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    split = Site.split

    def failing(site: Site, names: tuple[str, ...], **how: Any) -> Any:
        if site.client_id in (3, 7):
            raise OSError(f"disk of client {site.client_id} is gone")
        return split(site, names, **how)

    monkeypatch.setattr(Site, "split", failing)
    folder = simulate(tmp_path, method="fedncm", wire_dtype="float64")
    config = AppConfig.of(backbone="random:tiny", input_size=16, num_clients=10)
    stats, _ = central(config, [k for k in range(10) if k not in (3, 7)])
    found, _ = read_head(folder / "heads" / "fedncm.safetensors")
    assert torch.allclose(found.weight, solve_ncm(stats).weight, atol=1e-6)
    failed = [one for one in clients(folder) if one["outcome"] == "failed"]
    assert [one["client"] for one in failed] == [3, 7] and failed[0]["reason"] == "OSError: disk of client 3 is gone"
    assert "site 7 failed: OSError: disk of client 7 is gone" in capsys.readouterr().out


def test_clients_without_samples_and_absent_classes(tmp_path: Path) -> None:
    """60 clients at alpha 0.01: many have nothing; every head is finite."""
    folder = simulate(tmp_path, num_clients=60, dirichlet_alpha=0.01)
    assert sum(one["num_examples"] == 0 and one["outcome"] == "merged" for one in clients(folder)) > 10
    results = read_json(folder, "results.json")
    assert results["num_clients_merged"] == 60
    assert all(entry["accuracy"] > 0.15 for entry in results["methods"].values())


def test_all_methods_see_the_features_of_one_map(tmp_path: Path) -> None:
    feature_map, dim = "relu:48", 48
    folder = simulate(tmp_path, method="fedncm,fed3r,fedcof", feature_map=feature_map, num_clients=5)
    for name in ("fedncm", "fed3r", "fedcof"):
        head, metadata = read_head(folder / "heads" / f"{name}.safetensors")
        assert (head.feature_dim, metadata["feature-map"]) == (dim, feature_map)
    accuracy = read_json(folder, "results.json")["methods"]["fed3r"]["accuracy"]
    assert abs(share_right(fedstats_app.load(folder, "fed3r"), 200) - accuracy) < 0.12


def test_nodes_with_their_own_folders_are_aligned_by_name_and_evaluate_on_what_they_keep(tmp_path: Path) -> None:
    sites = [
        site_folder(tmp_path / "a", ("ant", "bee", "cat"), seed=1, images=12),
        site_folder(tmp_path / "b", ("cat", "dog"), seed=2, images=8),
        site_folder(tmp_path / "c", ("bee", "dog", "ant"), seed=3, images=12),
    ]
    configs = [{"data-path": site} for site in sites]
    folder = simulate(tmp_path, node_configs=configs, input_size=0, holdout_fraction=0.25)
    config, results = read_json(folder, "config.json"), read_json(folder, "results.json")
    assert config["class_names"] == ["ant", "bee", "cat", "dog"] and results["evaluated_on"] == "clients"
    # A quarter of 12 images a class is under the floor, so 5 are held out; of 8 this would leave too few.
    assert results["methods"]["fed3r"]["num_examples"] == 3 * 7 + 2 * 8 + 3 * 7
    assert results["num_test_examples"] == 2 * 3 * 5
    entry = results["methods"]["fed3r"]
    assert entry["accuracy"] > 0.9
    by_client = entry["client_accuracy"]["by_client"]
    assert set(by_client) == {str(FIRST_NODE_ID), str(FIRST_NODE_ID + 2)}
    assert entry["accuracy"] == pytest.approx(sum(by_client.values()) / 2) == entry["client_accuracy"]["mean"]
    assert entry["per_class_examples"] == [10, 10, 5, 5] and entry["macro_accuracy"] > 0.9
    # Labels per client are not drawn for sites with data of their own.
    assert not (folder / "plots").exists()
    image = Image.open(tmp_path / "b" / "dog" / "0.png")
    assert fedstats_app.load(folder, "fed3r").predict(image) == "dog"


def test_what_a_node_keeps_does_not_depend_on_the_id_that_flower_gives_it(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, "abc", ("ant", "bee", "cat"))
    methods = ("fedcof", "fed3r")
    settings: dict[str, Any] = {"method": ",".join(methods), "wire_dtype": "float64"}
    runs = [simulate(tmp_path, node_configs=order, **settings) for order in (nodes, nodes[::-1])]
    for name in methods:
        one, other = (read_head(run / "heads" / f"{name}.safetensors")[0] for run in runs)
        assert torch.allclose(one.weight, other.weight, rtol=1e-5, atol=1e-6 * float(one.weight.abs().max()))
        accuracies = [read_json(run, "results.json")["methods"][name]["accuracy"] for run in runs]
        assert accuracies[0] == accuracies[1]


def test_nodes_of_another_backbone_or_no_folder_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = tmp_path / "other.pth"
    state = load_backbone("random:tiny").module.state_dict()
    torch.save({name: value + 0.01 for name, value in state.items()}, weights)
    nodes = [*nodes_of(tmp_path, "abc", ("ant", "bee")), {"data-path": str(tmp_path / "gone")}]
    nodes[1] = {**nodes[1], "backbone-weights": str(weights)}
    folder = simulate(tmp_path, node_configs=nodes, backbone="tiny", backbone_weights="random", method="fedncm")
    outcomes = clients(folder)
    assert [one["outcome"] for one in outcomes] == ["merged", "failed", "merged"]
    assert "is not the server's, fingerprint" in outcomes[1]["reason"]
    ((node, reason),) = read_json(folder, "results.json")["refused_nodes"].items()
    assert node == str(FIRST_NODE_ID + 3) and reason == "DatasetError: the reason is in the log of this node"
    assert f"nothing is at {tmp_path / 'gone'}" in caplog.text


def test_a_wrong_configuration_says_everything_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError):
        simulate(tmp_path, **{"fed3r.ridge-lambda": -1.0}, partitioner="x")
    (folder,) = (tmp_path / "runs").iterdir()
    for said in (capsys.readouterr().out.rpartition("FAILED")[2], read_json(folder, "status.json")["reason"]):
        assert "ridge-lambda: must be" in said and "partitioner: must be one of" in said


def test_a_split_that_cannot_be_made_is_one_error_before_anybody_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="9000"):
        simulate(tmp_path, num_clients=9000)
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "clients.jsonl").exists()


def test_test_images_that_cannot_be_read_are_counted_apart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    site_folder(data / "train", ("ant", "bee"), seed=1)
    site_folder(data / "test", ("ant", "bee"), seed=2)
    (data / "test" / "bee" / "0.png").write_bytes(b"no image")
    folder = simulate(tmp_path, dataset=f"folder:{data}", num_clients=2, partitioner="iid", method="fedncm")
    results = read_json(folder, "results.json")
    assert (results["num_test_examples"], results["num_test_unreadable"], results["num_unreadable"]) == (15, 1, 0)
