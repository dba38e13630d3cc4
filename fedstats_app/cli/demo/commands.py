"""The commands that `fedstats demo` runs: those of docs/deployment.md, which a test compares."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# What runs are told: two rounds of training on the images of the sample, the same without weights, and on one's own.
PROBE = "input-size=64 min-clients=3 wait-timeout=300 settle-seconds=1 fine-tune='probe' num-server-rounds=2"
MEZO = (
    "input-size=64 min-clients=3 wait-timeout=300 settle-seconds=1 "
    "fine-tune='fedmezo' temperature=1.8 learning-rate=0.0005 num-server-rounds=2 "
    "test-dataset='folder:{folder}/server'"
)
OWN = "min-clients={sites} wait-timeout=300 settle-seconds=1 reply-timeout=3600"
CONNECTION = "demo"
LISTED = ["flwr", "supernode", "list", CONNECTION]
# A proxy that is not there, for what tries to reach the network all the same.
_NOWHERE = "http://127.0.0.1:9"


def environment(folder: Path) -> dict[str, str]:
    """Make the environment of all commands: this Python's first, state of Flower in the folder, no network."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {
        **kept,
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", ""),
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "HF_HUB_OFFLINE": "1",
        "HTTP_PROXY": _NOWHERE,
        "HTTPS_PROXY": _NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def superlink(folder: Path, port: int) -> list[str]:
    """Start the SuperLink."""
    return [
        "flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--database", f"{folder}/superlink.db",
        "--enable-supernode-auth", "--ssl-ca-certfile", f"{folder}/ca.crt", "--ssl-certfile", f"{folder}/server.pem",
        "--ssl-keyfile", f"{folder}/server.key", "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def connection(folder: Path, port: int) -> str:
    """Write that SuperLink in Flower's config.toml."""
    return f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{folder}/ca.crt"\n'


def register(folder: Path, site: str) -> list[str]:
    """Let a site's key in."""
    return ["flwr", "supernode", "register", f"{folder}/{site}.key.pub", CONNECTION, "--name", site]


def node(folder: Path, images: Path, port: int, number: int, site: str) -> list[str]:
    """Start a site's SuperNode, the number-th of this machine."""
    return [
        "fedstats", "node", "--superlink", f"127.0.0.1:{port}", "--port", str(port + number),
        "--root-certificates", f"{folder}/ca.crt", "--auth-supernode-private-key", f"{folder}/{site}.key",
        "--node-config", f'data-path="{images}/{site}" cache-dir="{folder}/cache/{site}" train=true',
    ]  # fmt: skip


def run(settings: str, **values: object) -> list[str]:
    """Run the app."""
    return ["flwr", "run", ".", CONNECTION, "--stream", "-c", settings.format(**values)]


def predict(run_folder: str, image: Path) -> list[str]:
    """Classify an image."""
    return [sys.executable, "-m", "fedstats_app.cli", "predict", run_folder, str(image)]
