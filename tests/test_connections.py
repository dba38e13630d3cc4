"""Nothing of ours opens a connection unasked: a hook records all hosts that our commands and imports look for."""

import importlib
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.deployment import PATIENCE
from tests.support.flower import environment_at, free_ports

RECORDER = Path(__file__).parent / "support" / "recording"
REPOSITORY = Path(__file__).parents[1]
# Libraries of the extras that a run may import by itself.
LIBRARIES = ("openvino", "ray", "datasets", "matplotlib.pyplot", "timm", "transformers", "huggingface_hub")
LIBRARIES += ("onnxruntime",)
NETWORK = "backbone='random:tiny' input-size=16"
RUN = f"dataset='{{data}}' partitioner='iid' num-clients=2 {NETWORK} engine='openvino'"

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start Python in a home of its own, as a user who has set nothing, with the recorder."""
    environment = environment_at(tmp_path, "flwr_", "fedstats_", "ci", "http", "all_proxy", "ray_", "hf_")
    for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"):
        del environment[name]
    environment |= {
        "PYTHONPATH": f"{RECORDER}{os.pathsep}{REPOSITORY}",
        "RECORDED_HOSTS": str(tmp_path / "hosts"),
        "OMP_NUM_THREADS": "1",
        # `check` fails where another program has Flower's usual port.
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_ports(1)[0]),
    }

    def started(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    return started


def hosts(home: Path) -> str:
    """Return what was recorded."""
    assert not (home / "intel").exists(), "OpenVINO's telemetry keeps an id there"
    recorded = home / "hosts"
    return recorded.read_text() if recorded.exists() else ""


def test_the_recorder_records(start: Start, tmp_path: Path) -> None:
    start("-c", "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))").wait(60)
    assert hosts(tmp_path) == "socket.connect 192.0.2.1 by -c\n"


def import_everything() -> None:
    """Import all modules of ours and the libraries of the extras."""
    for name in ("fedstats_app", "research"):
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in LIBRARIES:
        if find_spec(name.partition(".")[0]):
            importlib.import_module(name)


def use_every_command(folder: Path) -> None:
    """Run the commands that end by themselves, one after another in this process."""
    from fedstats_app.backbones.registry import load_backbone
    from fedstats_app.cli import main

    data, run = folder / "data", folder / "run"
    for number in range(36):
        image = data / "abc"[number % 3] / f"{number}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (16, 16, 3), np.uint8)).save(image)
    picture, settings = str(data / "a" / "0.png"), RUN.format(data=data) + f" output-dir='{folder}'"
    commands = [
        ("run", settings, "save-statistics='clients'"),
        ("check", "--data", settings),
        ("release", str(data), "--out", "site.fedstats", "-c", NETWORK),
        (
            "merge",
            "site.fedstats",
            "--out",
            str(run),
            "--test",
            str(data),
            "-c",
            "backbone='random:tiny' input-size=16",
        ),
        ("predict", str(run), picture, "--engine", "openvino"),
        ("evaluate", str(run), str(data), "--engine", "openvino"),
        ("inspect", str(data), "--run", str(run)),
        ("export", str(run), "--onnx"),
        ("export", str(run), "--hub", "hub"),
        ("report", str(run)),
        ("runs", str(folder)),
        ("new", "app"),
        ("node", "ledger"),
    ]
    for words in commands:
        assert main(words) == 0, words
    assert main(["remove", str(next(folder.glob("20*/clients")).parent), "--client", "0"]) == 0
    load_backbone("timm:resnet18", weights="random", device="cpu")
    load_backbone("all-MiniLM-L6-v2", device="cpu")


def test_imports_and_commands_open_no_connection(start: Start, tmp_path: Path) -> None:
    process = start("-c", "from tests.test_connections import *\nimport_everything()\nuse_every_command(Path.cwd())")
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert hosts(tmp_path) == ""


def test_a_node_tells_nobody_but_its_superlink(start: Start, tmp_path: Path) -> None:
    superlink, own = free_ports(2)
    words = ("--superlink", f"127.0.0.1:{superlink}", "--port", str(own), "--insecure")
    process = start("-m", "fedstats_app.cli", "node", *words, "--node-config", "data-path='/data'")
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "Starting Flower SuperNode" in line:
                break
        time.sleep(1)  # Flower reports its start from a thread
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(60)
    assert hosts(tmp_path) == ""
