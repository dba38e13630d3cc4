"""A real SuperLink with real SuperNodes: what deployment/demo.sh started, with nodes of the test's own beside its."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.flower import REPOSITORY

SCRIPT = REPOSITORY / "deployment" / "demo.sh"
# All that can take long on a busy machine: Flower's processes need seconds of processor time each before they answer.
PATIENCE = 900.0


@dataclass
class Deployment:
    """A federation on this machine.

    Attributes
    ----------
    folder : Path
        The script's: keys, certificates, images, logs.
    port : int
        Of the SuperLink; the script's SuperNodes have the three after it, those of a test the ones behind.
    environment : dict
        Of every command.
    """

    folder: Path
    port: int
    environment: dict[str, str]
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: int = 0

    def command(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command of Flower's, its output to a log of its own."""
        self.commands += 1
        return self._start(f"{words[0]}-{self.commands}", words, {})

    def register(self, *names: str) -> None:
        """Make keys and register them, all at a time."""
        running = []
        for name in names:
            self.make_key(name)
            public = str(self.folder / f"{name}.key.pub")
            running.append(self.command("flwr", "supernode", "register", public, "demo", "--name", name))
        for process in running:
            if process.wait(PATIENCE):
                raise AssertionError(f"registering failed; see {self.folder}/flwr-*.log")

    def make_key(self, name: str) -> None:
        words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", self.folder / f"{name}.key"]
        subprocess.run(words, check=True)

    def supernode(
        self,
        name: str,
        node_config: str,
        *,
        certificates: Path | None = None,
        key: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode as the script does."""
        words = [
            "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--port", str(self.port + 4 + len(self.started)),
            "--root-certificates", str(certificates or self.folder / "ca.crt"),
            "--auth-supernode-private-key", str(key or self.folder / f"{name}.key"),
        ]  # fmt: skip
        return self._start(name, [*words, "--node-config", node_config], environment or {})

    def _start(self, name: str, words: list[str] | tuple[str, ...], more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env={**self.environment, **more},
            )
        self.started[f"{name}-{process.pid}"] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    def node_id(self, name: str) -> str:
        """The id that the SuperLink gave to a node, from its log."""
        wait_until(lambda: "SuperNode ID: " in self.log(name), f"{name} is activated", lambda: self.log(name))
        return self.log(name).split("SuperNode ID: ")[1].split()[0]

    def end(self) -> None:
        """End what the test started."""
        for process in self.started.values():
            if process.poll() is None:
                process.terminate()
        for process in self.started.values():
            process.wait(60)


@contextmanager
def demo(home: Path) -> Iterator[Deployment]:
    """Run deployment/demo.sh with ``--keep``, and give the federation once the script says that it is up.

    At the end the script is told to end, as by Ctrl-C, and nothing of what it started may be left.
    """
    port, folder = free_range(40), home / "demo"
    home.mkdir(parents=True, exist_ok=True)
    environment = script_environment(home)
    output = home / "demo.out"
    with output.open("wb") as log:
        script = subprocess.Popen(
            [str(SCRIPT), "--dir", str(folder), "--port", str(port), "--keep"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment,
        )
    offline = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    made = Deployment(folder, port, {**environment, **offline, "FLWR_HOME": str(folder / "flwr")})
    try:
        wait_until(
            lambda: script.poll() is not None or "The federation is up" in output.read_text(),
            "the script has set up the federation",
            output.read_text,
        )
        if script.poll() is not None:
            raise AssertionError(f"the script ended with {script.returncode}:\n{output.read_text()}")
        yield made
    finally:
        made.end()
        script.send_signal(signal.SIGTERM)
        script.wait(120)
        wait_until(lambda: not processes_naming(str(folder)), "all processes of the federation have ended")


def script_environment(home: Path) -> dict[str, str]:
    """Return the environment of somebody who sits at a terminal, with this Python's commands on the path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "FEDSTATS_"))}
    return {
        **inherited,
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "COLUMNS": "200",
    }


def processes_naming(text: str) -> list[int]:
    """Return the processes in whose command line a text occurs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if text.encode() in arguments:
            found.append(int(entry.name))
    return found


def free_range(number: int) -> int:
    """Return the first of so many ports in a row that nobody listens on."""
    for first in range(20000, 32000, number):
        sockets = [socket.socket() for _ in range(number)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + offset))
        except OSError:
            continue
        else:
            return first
        finally:
            for one in sockets:
                one.close()
    raise AssertionError(f"no {number} free ports in a row")


def wait_until(condition: Callable[[], object], what: str, shown: Callable[[], str] = str) -> None:
    """Poll until a condition holds.

    Raises
    ------
    AssertionError
        If it does not within ``PATIENCE`` seconds, with what is shown then.
    """
    started = time.monotonic()
    while not condition():
        if time.monotonic() - started > PATIENCE:
            raise AssertionError(f"waited {PATIENCE:.0f} s in vain: {what}\n{shown()[-4000:]}")
        time.sleep(0.2)
