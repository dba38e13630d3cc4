"""Real federations, as docs/deployment.md sets one up: TLS, node authentication, faults, a node that comes back.

There are two, at the same time: that of the script, and one beside it. While Flower waits there for a dead node, which
takes a minute, what else is slow is done.
"""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fedstats_app
from fedstats_app import replay
from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.cli.demo.certificates import make_certificates
from fedstats_app.data import load_dataset
from fedstats_app.methods import METHODS
from fedstats_app.report.head_file import read_head
from fedstats_app.settings.app_config import AppConfig
from tests.support.deployment import DEMO, PATIENCE, Deployment, Script, demo, script_environment, wait_until
from tests.support.faulty_nodes import MEZO_ROUNDS, SITES, FaultyRun, lines, merged_folder, run_with_faults
from tests.support.flower import REAL_RUNS, processes_naming
from tests.support.simulation import read_json, simulate

pytestmark = REAL_RUNS


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


@pytest.fixture(scope="module")
def data(script: Script, tmp_path_factory: pytest.TempPathFactory) -> Path:
    script.wait_for("== certificates")
    return merged_folder(tmp_path_factory.mktemp("merged"), script.folder)


def default_network() -> Backbone:
    return load_backbone("efficientnet_lite0", input_size=64, batch_size=16, feature_power=0.5)


@pytest.fixture(scope="module")
def simulated(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of a simulation: a partition is a site's images, under the floors of real nodes."""
    split = {"partitioner": "natural-id", "partition_column": "subfolder", "num_clients": 3, "min_class_count": 5}
    network = {"backbone": AppConfig().backbone.backbone, "input_size": 64}
    node = {"partition-id": 0, "num-partitions": 1, "min-gram-samples": 2 * 1280}
    folder = tmp_path_factory.mktemp("simulated")
    return simulate(folder, node_configs=[node], dataset=f"folder:{data}", **split, **network)


@pytest.fixture(scope="module")
def outsiders(script: Script, beside: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Start two nodes that may not join, and wait until both have given up."""
    config, tmp_path = f'data-path="{script.folder}/images/site-a"', tmp_path_factory.mktemp("outsiders")
    make_certificates(tmp_path)
    for name in ("unregistered", "wrong-certificate"):
        beside.make_key(name)
    unregistered = beside.supernode("unregistered", config)
    stranger = beside.supernode("wrong-certificate", config, certificates=tmp_path / "ca.crt")
    for process in (unregistered, stranger):
        wait_until(lambda process=process: process.poll() is not None, "the node gave up")
        assert process.returncode
    return beside


@pytest.fixture(scope="module")
def failed_script(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run the script where another process has the port; return its folder and its errors."""
    folder = tmp_path_factory.mktemp("failed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = subprocess.run(
            [*DEMO, "--dir", folder / "demo", "--port", str(taken.getsockname()[1])],
            env=script_environment(folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 1, done.stderr
    return folder, done.stderr


@pytest.fixture(scope="module")
def faulty_run(
    script: Script, beside: Deployment, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> FaultyRun:
    tmp_path = tmp_path_factory.mktemp("faulty")

    def meanwhile() -> None:
        for fixture in ("simulated", "outsiders", "failed_script"):
            request.getfixturevalue(fixture)

    return run_with_faults(script, beside, tmp_path, meanwhile)


def test_every_faulty_node_is_named_with_its_reason(faulty_run: FaultyRun) -> None:
    refused = read_json(faulty_run.folder, "results.json")["refused_nodes"]
    nodes = faulty_run.nodes
    assert set(refused) == {nodes["no-data"]} and "the reason is in the log of this node" in refused[nodes["no-data"]]
    for node, reason in refused.items():
        assert f"[fedstats] node {node} takes no part: {reason}"[:150] in faulty_run.output
    outcomes = {str(one["client"]): one for one in lines(faulty_run.folder, "clients.jsonl")}
    assert outcomes[nodes["other-network"]]["outcome"] == "failed"
    assert "is not the server's, fingerprint" in outcomes[nodes["other-network"]]["reason"]
    assert {outcomes[nodes[site]]["outcome"] for site in SITES} == {"merged"}


def test_a_node_that_serves_a_release_is_in_the_heads_and_in_no_training(faulty_run: FaultyRun) -> None:
    outcomes = {str(one["client"]): one for one in lines(faulty_run.folder, "clients.jsonl")}
    served, own = (outcomes[faulty_run.nodes[name]] for name in ("released", "site-b"))
    assert served["outcome"] == "merged" and served["num_examples"] >= own["num_examples"] > 0
    assert max(one["num_clients"] for one in lines(faulty_run.folder, "rounds.jsonl")) <= len(SITES)


def test_a_killed_node_and_a_clientapp_that_dies_are_named_and_both_come_back(faulty_run: FaultyRun) -> None:
    rounds = [one["num_clients"] for one in lines(faulty_run.folder, "rounds.jsonl")]
    # The node with another network is not asked: it has no part in the heads. The run continues with the others.
    assert rounds[1:3] == [3, 1] and min(rounds[3:]) >= 2, rounds
    assert len(rounds) == 1 + MEZO_ROUNDS
    said = [line for line in faulty_run.output.splitlines() if "[fedstats] round 2: site" in line]
    reasons = {node: line for node in faulty_run.nodes.values() for line in said if f"site {node} " in line}
    assert "unavailable" in reasons[faulty_run.nodes["site-c"]].lower()
    assert "stopped responding" in reasons[faulty_run.nodes["site-a"]].lower()
    assert read_json(faulty_run.folder, "status.json")["state"] == "completed"


def test_all_replicas_end_with_the_same_bits_whatever_was_lost(faulty_run: FaultyRun, beside: Deployment) -> None:
    for kept in faulty_run.kept.values():
        assert kept["."] == "drwx------" and "start.safetensors" in kept
    replica = replay(faulty_run.folder / "mezo" / "fedncm-fedmezo", default_network())
    assert replica.round == MEZO_ROUNDS
    notes = read_json(faulty_run.folder, "results.json")["training"]["fedncm-fedmezo"]["notes"]
    (note,) = [note for note in notes if "replicas" in note]
    assert note.startswith(f"3 of 3 replicas are bit-identical at the end, digest {replica.digest().hex()}")
    assert not list(beside.folder.rglob("mezo-*"))  # the nodes have forgotten it


def test_outsiders_never_get_in_and_their_logs_say_why(outsiders: Deployment) -> None:
    assert "Failed to activate SuperNode" in outsiders.log("unregistered")
    assert "CERTIFICATE_VERIFY_FAILED" in outsiders.log("wrong-certificate")
    for name in ("unregistered", "wrong-certificate"):
        assert "SuperNode ID: " not in outsiders.log(name)


def test_a_script_that_fails_says_why_and_ends_what_it_started(failed_script: tuple[Path, str]) -> None:
    folder, errors = failed_script
    assert "superlink did not say" in errors and f"fedstats demo failed; logs are in {folder}/demo" in errors
    wait_until(lambda: not processes_naming(str(folder)), "nothing is left")


# The script's own runs, last: it runs beside the tests above.


def run_folders(federation: Deployment) -> list[Path]:
    return sorted((Path(federation.environment["HOME"]) / "fedstats-runs").glob("*"))


@pytest.fixture(scope="module")
def first_run(federation: Script) -> Path:
    """Return the run folder of the script's first run."""
    return run_folders(federation)[0]


def test_the_script_runs_predicts_and_evaluates_on_what_the_nodes_keep(federation: Script, first_run: Path) -> None:
    output = federation.output
    assert f"[fedstats] completed; results are in\n{first_run}\n" in output
    results, config = read_json(first_run, "results.json"), read_json(first_run, "config.json")
    assert (results["num_clients_asked"], results["num_clients_merged"]) == (3, 3)
    assert results["evaluated_on"] == "clients" and not results["evaluation_failures"]
    assert results["methods"]["fed3r"]["accuracy"] > 0.65
    # Every class of any site, though no site has all.
    assert len(config["class_names"]) == 10
    found = [(one["stage"], one["round"], one["num_clients"]) for one in lines(first_run, "rounds.jsonl")[1:]]
    assert found == [("probe", 1, 3), ("probe", 2, 3)]
    assert "Ankle boot" in output.split("== predict")[1].split("== run")[0]


def test_the_head_is_that_of_a_simulation_on_the_same_folders(federation: Script, simulated: Path, data: Path) -> None:
    _, deployed = run_folders(federation)
    test = load_dataset(f"folder:{data}", "test", folder_levels="class")
    assert test is not None
    pictures = [test.sample(index) for index in range(len(test))]
    features = torch.cat(list(default_network().extract(pictures)))
    for method in METHODS:
        deployed_head, _ = read_head(deployed / "heads" / f"{method}.safetensors")
        simulated_head, _ = read_head(simulated / "heads" / f"{method}.safetensors")
        scale = float(simulated_head.weight.abs().max())
        assert torch.allclose(deployed_head.weight, simulated_head.weight, rtol=0, atol=1e-6 * scale), method
        assert torch.equal(deployed_head.predict(features), simulated_head.predict(features)), method
    one, other = (fedstats_app.load(run, "fed3r") for run in (deployed, simulated))
    assert one.predict(pictures[::4]) == other.predict(pictures[::4])
    accuracies = [read_json(run, "results.json")["methods"]["fed3r"] for run in (deployed, simulated)]
    assert accuracies[0]["accuracy"] == accuracies[1]["accuracy"] > 0.65


def test_the_script_fine_tunes_without_sending_weights(federation: Script) -> None:
    _, folder = run_folders(federation)
    assert f"[fedstats] completed; results are in\n{folder}\n" in federation.output
    # It starts from the most accurate head, which a few dozen test images decide.
    ((name, training),) = read_json(folder, "results.json")["training"].items()
    assert name in {f"{method}-fedmezo" for method in METHODS}
    assert training["notes"][0].startswith("3 of 3 replicas are bit-identical at the end, digest ")
    rounds = lines(folder, "rounds.jsonl")
    assert [(one["round"], one["num_clients"]) for one in rounds] == [(0, 0), (1, 3), (2, 3)]
    # A seed, a round, the last update; a scalar, a count, a digest.
    assert (rounds[2]["bytes_down"], rounds[2]["bytes_up"]) == (3 * 40, 3 * 32)
    assert rounds[-1]["loss"] != rounds[0]["loss"]  # two random directions may as well harm
    assert not list(federation.folder.rglob("mezo-*"))  # the nodes have forgotten it


def test_a_class_under_the_floor_stays_on_its_node(federation: Script, first_run: Path) -> None:
    """Three bags at site-c: they are in no head's counts, and the others are told how many classes, not which."""
    by_client = {str(one["client"]): one for one in lines(first_run, "clients.jsonl")}
    suppressed = {site: by_client[federation.node_id(site)]["num_suppressed_classes"] for site in SITES}
    assert suppressed == {"site-a": 0, "site-b": 0, "site-c": 1}


def test_features_are_cached_where_the_node_s_owner_says(federation: Script) -> None:
    def cached(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    for site in SITES:
        images = sum(1 for _ in (federation.folder / "images" / site).rglob("*.png"))
        features = federation.folder / "cache" / site / "features"
        assert 0.9 * images * 1280 * 4 < cached(features) < 1.3 * images * 1280 * 4
    # Where the owner says nothing there is nothing but what servers keep of their own test images.
    assert cached(Path(federation.environment["HOME"]) / ".cache" / "fedstats" / "features") < 2 * 1.3 * 200 * 1280 * 4
