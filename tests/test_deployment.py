"""A real federation, as docs/deployment.md sets one up: TLS, node authentication, faults, a node that comes back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, RecordDict
from support.deployment import (
    PATIENCE,
    SCRIPT,
    Deployment,
    demo,
    processes_naming,
    script_environment,
    wait_until,
)
from support.local_grid import LocalGrid

import fedstats_app
from fedstats_app import client_app, server_app
from fedstats_app.backbones import load_backbone
from fedstats_app.config import AppConfig
from fedstats_app.data import load_dataset
from fedstats_app.results.head_file import read_head

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes left behind in /proc"),
    pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="makes certificates"),
]

METHODS = ("fedncm", "fed3r", "fedcof", "fedcgs")
SITES = ("site-a", "site-b", "site-c")
# A fourth site whose ClientApp dies, without a word, when it is to train and this file is there.
CRASH = """
import os, sys

def die(event, args):
    if event == "import" and args[0] == "fedstats_app.client_training" and os.path.exists({flag!r}):
        os._exit(7)

sys.addaudithook(die)
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with demo(tmp_path_factory.mktemp("home")) as made:
        yield made


def read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_folders(federation: Deployment) -> list[Path]:
    return sorted((Path(federation.environment["HOME"]) / "fedstats-runs").glob("*"))


@pytest.fixture(scope="module")
def first_run(federation: Deployment) -> Path:
    """Return the run folder of the script's own run."""
    return run_folders(federation)[0]


def test_the_script_runs_predicts_and_evaluates_on_what_the_nodes_keep(federation: Deployment, first_run: Path) -> None:
    output = (federation.folder.parent / "demo.out").read_text()
    assert f"[fedstats] completed; results are in\n{first_run}\n" in output
    results, config = read_json(first_run, "results.json"), read_json(first_run, "config.json")
    assert (results["num_clients_asked"], results["num_clients_merged"]) == (3, 3)
    assert results["evaluated_on"] == "clients" and not results["evaluation_failures"]
    assert results["methods"]["fed3r"]["accuracy"] > 0.65
    # Every class of any site, though no site has all.
    assert len(config["class_names"]) == 10
    rounds = lines(first_run, "rounds.jsonl")
    assert [(one["stage"], one["round"], one["num_clients"]) for one in rounds[1:]] == [
        ("probe", number, 3) for number in (1, 2, 3)
    ]
    assert "Ankle boot" in output.split("== predict")[1]


def test_a_class_under_the_floor_stays_on_its_node(federation: Deployment, first_run: Path) -> None:
    """Three bags at site-c: they are in no head's counts, and the others are told how many classes, not which."""
    by_client = {str(one["client"]): one for one in lines(first_run, "clients.jsonl")}
    suppressed = {site: by_client[federation.node_id(site)]["num_suppressed_classes"] for site in SITES}
    assert suppressed == {"site-a": 0, "site-b": 0, "site-c": 1}


def test_features_are_cached_where_the_node_s_owner_says(federation: Deployment) -> None:
    for site in SITES:
        cached = sum(path.stat().st_size for path in (federation.folder / "cache" / site).rglob("*") if path.is_file())
        images = sum(1 for _ in (federation.folder / "images" / site).rglob("*.png"))
        assert 0.9 * images * 1280 * 4 < cached < 1.3 * images * 1280 * 4
    assert not (Path(federation.environment["HOME"]) / ".cache" / "fedstats").exists()


@dataclass(frozen=True)
class FaultyRun:
    """A run with nodes that fail: its folder, its output, and the ids of nodes by name."""

    folder: Path
    output: str
    nodes: dict[str, str]


def merged_folder(root: Path, federation: Deployment) -> Path:
    """Put all sites' images into one data set, ``train/<class>/<site>/*.png``, with images of its own to test on."""
    for image in (federation.folder / "images").glob("site-*/*/*.png"):
        target = root / "train" / image.parent.name / image.parent.parent.name / image.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(image, target)
    test = load_dataset("builtin", "test")
    assert test is not None
    for index in range(200):
        target = root / "test" / test.class_names[int(test.labels[index])].partition("/")[0] / f"{index}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        test.sample(index).save(target)
    return root


@pytest.fixture(scope="module")
def data(federation: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    images = federation.folder / "images"
    # The fourth site: some images of two classes, which the others do not have.
    test = load_dataset("builtin", "train")
    for label, name in ((5, "Sandal"), (8, "Bag")):
        (images / "site-d" / name).mkdir(parents=True)
        for index in (test.labels == label).nonzero()[0][-15:]:
            test.sample(int(index)).save(images / "site-d" / name / f"{index}.png")
    return merged_folder(tmp_path_factory.mktemp("merged"), federation)


@pytest.fixture(scope="module")
def faulty_run(federation: Deployment, data: Path, tmp_path_factory: pytest.TempPathFactory) -> FaultyRun:
    """Run with four good nodes and all kinds of others; one node is killed in mid-run, and one ClientApp dies."""
    tmp_path = tmp_path_factory.mktemp("faulty")
    images, flag = federation.folder / "images", tmp_path / "die"
    names = ("site-d", "no-data", "no-folder", "other-network")
    federation.register(*names)
    (tmp_path / "sitecustomize.py").write_text(CRASH.format(flag=str(flag)))
    federation.supernode("site-d", f'data-path="{images}/site-d"', environment={"PYTHONPATH": str(tmp_path)})
    federation.supernode("no-data", 'name="nobody"')
    federation.supernode("no-folder", f'data-path="{images}/site-x"')
    weights = tmp_path / "other.safetensors"
    other_network(weights)
    federation.supernode("other-network", f'data-path="{images}/site-a" backbone-weights="{weights}"')
    nodes = {name: federation.node_id(name) for name in (*names, *SITES)}
    before, seen = set(run_folders(federation)), federation.log("site-c").count("ROUND 2]")
    running = federation.command(
        "flwr", "run", ".", "demo", "--stream", "-c",
        f"input-size=64 min-clients=2 wait-timeout=600 settle-seconds=15 test-dataset='folder:{data}' plots=false "
        "fine-tune='probe' start-head='fed3r' num-server-rounds=7",
    )  # fmt: skip
    log = f"flwr-{federation.commands}"

    def rounds() -> int:
        return max((len(lines(folder, "rounds.jsonl")) for folder in set(run_folders(federation)) - before), default=0)

    wait_until(lambda: rounds() >= 2 or running.poll() is not None, "round 1 is done", lambda: federation.log(log))
    flag.touch()
    wait_until(
        lambda: federation.log("site-c").count("ROUND 2]") > seen or running.poll() is not None,
        "site-c is asked to train in round 2",
        lambda: federation.log(log),
    )
    # Its ClientApp takes seconds to start: it has not answered yet.
    os.kill(federation.pid("site-c"), signal.SIGKILL)
    wait_until(lambda: rounds() >= 3 or running.poll() is not None, "round 2 is done", lambda: federation.log(log))
    flag.unlink()
    come_back(federation, "site-c")
    wait_until(lambda: running.poll() is not None, "the run is over", lambda: federation.log(log))
    (folder,) = set(run_folders(federation)) - before
    return FaultyRun(folder, federation.log(log), nodes)


def other_network(path: Path) -> None:
    """Write weights that differ in one number."""
    from safetensors.torch import save_file

    state = {name: value.clone() for name, value in load_backbone("efficientnet_lite0").module.state_dict().items()}
    next(iter(state.values())).view(-1)[0] += 0.01
    save_file(state, path)


def come_back(federation: Deployment, name: str) -> None:
    """Start a node again that was killed, as systemd would: until the SuperLink takes it."""
    config = f'data-path="{federation.folder}/images/{name}" cache-dir="{federation.folder}/cache/{name}"'
    for _ in range(30):
        ids = federation.log(name).count("SuperNode ID: ")
        process = federation.supernode(name, config)
        wait_until(
            lambda ids=ids, process=process: (
                process.poll() is not None or federation.log(name).count("SuperNode ID: ") > ids
            ),
            f"{name} is back, or was refused",
        )
        if process.poll() is None:
            return
    raise AssertionError(f"{name} was refused 30 times:\n{federation.log(name)[-2000:]}")


def test_every_faulty_node_is_named_with_its_reason(faulty_run: FaultyRun) -> None:
    refused = read_json(faulty_run.folder, "results.json")["refused_nodes"]
    nodes = faulty_run.nodes
    assert set(refused) == {nodes["no-data"], nodes["no-folder"]}
    assert "node-config: must name data-path" in refused[nodes["no-data"]]
    assert "site-x" in refused[nodes["no-folder"]] and "DatasetError" in refused[nodes["no-folder"]]
    for node, reason in refused.items():
        assert f"[fedstats] node {node} takes no part: {reason}"[:150] in faulty_run.output
    outcomes = {str(one["client"]): one for one in lines(faulty_run.folder, "clients.jsonl")}
    assert outcomes[nodes["other-network"]]["outcome"] == "failed"
    assert "is not the server's, fingerprint" in outcomes[nodes["other-network"]]["reason"]
    assert {outcomes[nodes[site]]["outcome"] for site in (*SITES, "site-d")} == {"merged"}


def test_a_killed_node_and_a_clientapp_that_dies_are_named_and_both_come_back(faulty_run: FaultyRun) -> None:
    rounds = [one["num_clients"] for one in lines(faulty_run.folder, "rounds.jsonl")]
    # The node with another network is not asked: it has no part in the heads.
    assert rounds[1:3] == [4, 2] and rounds[-1] == 4, rounds
    said = [line for line in faulty_run.output.splitlines() if "[fedstats] round 2: client" in line]
    reasons = {node: line for node in faulty_run.nodes.values() for line in said if f"client {node} " in line}
    assert "unavailable" in reasons[faulty_run.nodes["site-c"]].lower()
    assert "stopped responding" in reasons[faulty_run.nodes["site-d"]].lower()
    assert read_json(faulty_run.folder, "status.json")["state"] == "completed"


def test_the_head_is_that_of_a_simulation_on_the_same_folders(
    faulty_run: FaultyRun, data: Path, tmp_path: Path
) -> None:
    """Nodes with partitions, as Flower's simulation has them: a partition is a site's images, under the same floor."""
    run_config = {
        **AppConfig().to_run_config(),
        "dataset": f"folder:{data}",
        "partitioner": "natural-id",
        "partition-column": "subfolder",
        "num-clients": 4,
        "min-class-count": 5,
        "input-size": 64,
        "plots": False,
        "output-dir": str(tmp_path / "runs"),
        "cache-dir": str(tmp_path / "cache"),
    }
    nodes = [{"partition-id": node, "num-partitions": 2} for node in range(2)]
    server_app.app(LocalGrid(client_app.app, nodes, run_config), Context(7, 1, {}, RecordDict(), run_config))
    (simulated,) = (tmp_path / "runs").iterdir()
    test = load_dataset(f"folder:{data}", "test")
    assert test is not None
    pictures = [test.sample(index) for index in range(len(test))]
    for method in METHODS:
        deployed_head, _ = read_head(faulty_run.folder / "heads" / f"{method}.safetensors")
        simulated_head, _ = read_head(simulated / "heads" / f"{method}.safetensors")
        scale = float(simulated_head.weight.abs().max())
        assert torch.allclose(deployed_head.weight, simulated_head.weight, rtol=0, atol=1e-6 * scale), method
        one, other = (fedstats_app.load(run, method) for run in (faulty_run.folder, simulated))
        assert one.predict(pictures) == other.predict(pictures), method
    accuracies = [read_json(run, "results.json")["methods"]["fed3r"] for run in (faulty_run.folder, simulated)]
    assert accuracies[0]["accuracy"] == accuracies[1]["accuracy"] > 0.65


def test_outsiders_never_get_in_and_their_logs_say_why(federation: Deployment, tmp_path: Path) -> None:
    config = f'data-path="{federation.folder}/images/site-a"'
    federation.make_key("unregistered")
    unregistered = federation.supernode("unregistered", config)
    federation.make_key("wrong-certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-days", "2", "-nodes",
         "-keyout", tmp_path / "other.key", "-out", tmp_path / "other.crt", "-subj", "/CN=Somebody else"],
        check=True, capture_output=True,
    )  # fmt: skip
    stranger = federation.supernode("wrong-certificate", config, certificates=tmp_path / "other.crt")
    for process in (unregistered, stranger):
        wait_until(lambda process=process: process.poll() is not None, "the node gave up")
        assert process.returncode
    assert "Failed to activate SuperNode" in federation.log("unregistered")
    assert "CERTIFICATE_VERIFY_FAILED" in federation.log("wrong-certificate")
    for name in ("unregistered", "wrong-certificate"):
        assert "SuperNode ID: " not in federation.log(name)


def test_a_script_that_fails_says_why_and_ends_what_it_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [SCRIPT, "--dir", tmp_path / "demo", "--port", str(port)],
            env=script_environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 1 and "superlink did not say" in done.stderr, done.stderr
    assert f"demo.sh failed; logs are in {tmp_path}/demo" in done.stderr
    wait_until(lambda: not processes_naming(str(tmp_path)), "nothing is left")
