"""Real federations, as docs/deployment.md sets one up: TLS, node authentication, faults, a node that comes back.

There are two, at the same time: that of the script, and one beside it, for whose dead node Flower waits a minute.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
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
    Script,
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
from fedstats_app.mezo_model import replay
from fedstats_app.results.head_file import read_head

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes left behind in /proc"),
    pytest.mark.skipif(not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="makes certificates"),
]

METHODS = ("fedncm", "fed3r", "fedcof", "fedcgs")
SITES = ("site-a", "site-b", "site-c")
# A ClientApp that dies, without a word, when it is to train and a file is there.
CRASH = """
import os, sys

def die(event, args):
    if event == "import" and args[0] == "fedstats_app.client_mezo" and os.path.exists({flag!r}):
        os._exit(7)

sys.addaudithook(die)
"""
MEZO_ROUNDS = 10


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Script]:
    with demo(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture(scope="module")
def federation(script: Script) -> Script:
    """Return the script's federation, once all that the script does is done."""
    script.wait_for("The federation is up")
    return script


@pytest.fixture(scope="module")
def beside(script: Script) -> Iterator[Deployment]:
    """Return another federation, of nodes that the tests start."""
    script.wait_for("== SuperLink")
    made = Deployment.beside(script)
    try:
        yield made
    finally:
        made.end()


def read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run_folders(federation: Deployment) -> list[Path]:
    return sorted((Path(federation.environment["HOME"]) / "fedstats-runs").glob("*"))


@pytest.fixture(scope="module")
def first_run(federation: Script) -> Path:
    """Return the run folder of the script's first run."""
    return run_folders(federation)[0]


@dataclass(frozen=True)
class FaultyRun:
    """A run with nodes that fail: its folder, its output, the ids of nodes by name, and files that nodes kept in it."""

    folder: Path
    output: str
    nodes: dict[str, str]
    kept: dict[str, dict[str, str]]


def merged_folder(root: Path, images: Path) -> Path:
    """Put all sites' images into one data set, ``train/<class>/<site>/*.png``, with the server's own to test on."""
    for image in images.glob("site-*/*/*.png"):
        target = root / "train" / image.parent.name / image.parent.parent.name / image.name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(image, target)
    shutil.copytree(images / "server" / "test", root / "test")
    return root


@pytest.fixture(scope="module")
def data(script: Script, tmp_path_factory: pytest.TempPathFactory) -> Path:
    script.wait_for("== certificates")
    return merged_folder(tmp_path_factory.mktemp("merged"), script.folder / "images")


def site_config(beside: Deployment, script: Script, site: str) -> str:
    """Return the node-config of a site; the owner of one says where state lasts, that of the others does not."""
    more = f' state-dir="{beside.folder}/state-of-c"' if site == "site-c" else ""
    return f'data-path="{script.folder}/images/{site}" cache-dir="{beside.folder}/cache/{site}"{more}'


def state_of(beside: Deployment, site: str) -> Path:
    """Return the folder of what FedMeZO keeps on a node: in its state-dir, or beside its cache."""
    root = beside.folder / "state-of-c" if site == "site-c" else beside.folder / "cache" / site / "state"
    (folder,) = root.glob("mezo-*")
    return folder


def kept_in(folder: Path) -> dict[str, str]:
    """Return the permissions of a folder, under the name ".", and of its files."""
    return {
        path.name if path != folder else ".": stat.filemode(path.stat().st_mode) for path in (folder, *folder.iterdir())
    }


@pytest.fixture(scope="module")
def faulty_run(script: Script, beside: Deployment, data: Path, tmp_path_factory: pytest.TempPathFactory) -> FaultyRun:
    """FedMeZO with three good nodes and all kinds of others.

    In round 2 one node is killed and the ClientApp of another dies; before round 3 the third one and the dead one lose
    what they kept. The dead one comes back.
    """
    tmp_path = tmp_path_factory.mktemp("faulty")
    flag, weights = tmp_path / "die", tmp_path / "other.safetensors"
    (tmp_path / "sitecustomize.py").write_text(CRASH.format(flag=str(flag)))
    other_network(weights)
    faults = {
        "no-data": 'name="nobody"',
        "no-folder": f'data-path="{script.folder}/images/site-x"',
        "other-network": f'data-path="{script.folder}/images/site-a" backbone-weights="{weights}"',
    }
    beside.register(*SITES, *faults)
    mortal = {"site-b": {"PYTHONPATH": str(tmp_path)}}
    configs = {site: site_config(beside, script, site) for site in SITES} | faults
    running = {name: beside.supernode(name, config, environment=mortal.get(name)) for name, config in configs.items()}
    nodes = {name: beside.node_id(name) for name in configs}
    run = beside.command(
        "flwr", "run", ".", "demo", "--stream", "-c",
        f"input-size=64 min-clients=1 wait-timeout=600 settle-seconds=5 test-dataset='folder:{data}' plots=false "
        f"fine-tune='fedmezo' start-head='fed3r' num-server-rounds={MEZO_ROUNDS} evaluate-every=5 "
        f"fedmezo-temperature=1.0 fedmezo-learning-rate=0.003 output-dir='{tmp_path}/runs'",
    )  # fmt: skip
    log = f"flwr-{beside.commands}"

    def wait(condition: Callable[[], object], what: str) -> None:
        wait_until(lambda: condition() or run.poll() is not None, what, lambda: beside.log(log))
        if not condition():
            raise AssertionError(f"the run ended before this: {what}\n{beside.log(log)}")

    def rounds() -> int:
        return sum(len(lines(folder, "rounds.jsonl")) - 1 for folder in (tmp_path / "runs").glob("*"))

    wait(lambda: rounds() >= 1, "round 1 is done")
    flag.touch()
    wait(lambda: "ROUND 2]" in beside.log("site-c"), "site-c is asked in round 2")
    running["site-c"].kill()  # its ClientApp takes seconds to start: it has not answered yet
    # A node's log names the round when it is asked and when it answers.
    wait(lambda: beside.log("site-a").count("ROUND 2]") >= 2, "site-a has answered in round 2")
    kept = {}
    for site in ("site-a", "site-c"):
        kept[site] = kept_in(state_of(beside, site))
        shutil.rmtree(state_of(beside, site))
    wait(lambda: rounds() >= 2, "round 2 is done")
    flag.unlink()
    come_back(beside, "site-c", configs["site-c"])
    wait(lambda: run.poll() is not None, "the run is over")
    (folder,) = (tmp_path / "runs").iterdir()
    return FaultyRun(folder, beside.log(log), nodes, kept)


def other_network(path: Path) -> None:
    """Write weights that differ in one number."""
    from safetensors.torch import save_file

    state = {name: value.clone() for name, value in load_backbone("efficientnet_lite0").module.state_dict().items()}
    next(iter(state.values())).view(-1)[0] += 0.01
    save_file(state, path)


def come_back(federation: Deployment, name: str, config: str) -> None:
    """Start a node again that was killed, as systemd would: until the SuperLink takes it."""
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
    assert {outcomes[nodes[site]]["outcome"] for site in SITES} == {"merged"}


def test_a_killed_node_and_a_clientapp_that_dies_are_named_and_both_come_back(faulty_run: FaultyRun) -> None:
    rounds = [one["num_clients"] for one in lines(faulty_run.folder, "rounds.jsonl")]
    # The node with another network is not asked: it has no part in the heads.
    assert rounds[1:3] == [3, 1] and rounds[-1] == 3 and len(rounds) == 1 + MEZO_ROUNDS, rounds
    said = [line for line in faulty_run.output.splitlines() if "[fedstats] round 2: client" in line]
    reasons = {node: line for node in faulty_run.nodes.values() for line in said if f"client {node} " in line}
    assert "unavailable" in reasons[faulty_run.nodes["site-c"]].lower()
    assert "stopped responding" in reasons[faulty_run.nodes["site-b"]].lower()
    assert read_json(faulty_run.folder, "status.json")["state"] == "completed"


def test_all_replicas_end_with_the_same_bits_whatever_was_lost(faulty_run: FaultyRun, beside: Deployment) -> None:
    for files in faulty_run.kept.values():
        assert files["."] == "drwx------"
        assert {"start.safetensors", "log.bin", "replica.safetensors"} <= set(files)
    site_a = faulty_run.nodes["site-a"]
    assert (
        f"[fedstats] round 3: client {site_a} was brought up to date by the log: it knew nothing" in faulty_run.output
    )
    replica = replay(
        faulty_run.folder / "mezo" / "fed3r-fedmezo", load_backbone("efficientnet_lite0", input_size=64, batch_size=16)
    )
    assert replica.round == MEZO_ROUNDS
    (note,) = read_json(faulty_run.folder, "results.json")["training"]["fed3r-fedmezo"]["notes"]
    assert note.startswith(f"3 of 3 replicas are bit-identical in the end, digest {replica.digest().hex()}")
    assert not list(beside.folder.rglob("mezo-*"))  # the nodes have forgotten it


def test_the_head_is_that_of_a_simulation_on_the_same_folders(
    faulty_run: FaultyRun, data: Path, tmp_path: Path
) -> None:
    """Nodes with partitions, as Flower's simulation has them: a partition is a site's images, under the same floor."""
    run_config = {
        **AppConfig().to_run_config(),
        "dataset": f"folder:{data}",
        "partitioner": "natural-id",
        "partition-column": "subfolder",
        "num-clients": 3,
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


def test_outsiders_never_get_in_and_their_logs_say_why(script: Script, beside: Deployment, tmp_path: Path) -> None:
    config = f'data-path="{script.folder}/images/site-a"'
    beside.make_key("unregistered")
    unregistered = beside.supernode("unregistered", config)
    beside.make_key("wrong-certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-days", "2", "-nodes",
         "-keyout", tmp_path / "other.key", "-out", tmp_path / "other.crt", "-subj", "/CN=Somebody else"],
        check=True, capture_output=True,
    )  # fmt: skip
    stranger = beside.supernode("wrong-certificate", config, certificates=tmp_path / "other.crt")
    for process in (unregistered, stranger):
        wait_until(lambda process=process: process.poll() is not None, "the node gave up")
        assert process.returncode
    assert "Failed to activate SuperNode" in beside.log("unregistered")
    assert "CERTIFICATE_VERIFY_FAILED" in beside.log("wrong-certificate")
    for name in ("unregistered", "wrong-certificate"):
        assert "SuperNode ID: " not in beside.log(name)


def test_the_script_runs_predicts_and_evaluates_on_what_the_nodes_keep(federation: Script, first_run: Path) -> None:
    output = federation.output
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
    assert "Ankle boot" in output.split("== predict")[1].split("== run")[0]


def test_the_script_fine_tunes_without_sending_weights(federation: Script) -> None:
    _, folder = run_folders(federation)
    assert f"[fedstats] completed; results are in\n{folder}\n" in federation.output
    training = read_json(folder, "results.json")["training"]["fed3r-fedmezo"]
    assert training["notes"][0].startswith("3 of 3 replicas are bit-identical in the end, digest ")
    rounds = lines(folder, "rounds.jsonl")
    assert [(one["round"], one["num_clients"]) for one in rounds] == [(0, 0), (1, 3), (2, 3), (3, 3)]
    # A seed, a round, the last update; a scalar, a count, a digest.
    assert [(one["bytes_down"], one["bytes_up"]) for one in rounds[2:]] == [(3 * 40, 3 * 32)] * 2
    assert rounds[-1]["loss"] < rounds[0]["loss"]
    assert not list(federation.folder.rglob("mezo-*"))  # the nodes have forgotten it


def test_a_class_under_the_floor_stays_on_its_node(federation: Script, first_run: Path) -> None:
    """Three bags at site-c: they are in no head's counts, and the others are told how many classes, not which."""
    by_client = {str(one["client"]): one for one in lines(first_run, "clients.jsonl")}
    suppressed = {site: by_client[federation.node_id(site)]["num_suppressed_classes"] for site in SITES}
    assert suppressed == {"site-a": 0, "site-b": 0, "site-c": 1}


def test_features_are_cached_where_the_node_s_owner_says(federation: Script) -> None:
    for site in SITES:
        cached = sum(path.stat().st_size for path in (federation.folder / "cache" / site).rglob("*") if path.is_file())
        images = sum(1 for _ in (federation.folder / "images" / site).rglob("*.png"))
        assert 0.9 * images * 1280 * 4 < cached < 1.3 * images * 1280 * 4
    assert not (Path(federation.environment["HOME"]) / ".cache" / "fedstats").exists()


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
