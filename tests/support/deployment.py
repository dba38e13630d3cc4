"""Real SuperLinks with real SuperNodes: what `fedstats demo` starts, and federations of the tests' own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedstats_app.cli.demo import commands
from fedstats_app.cli.demo.certificates import make_node_key
from tests.support.flower import REPOSITORY, environment_at, processes_naming

DEMO = (sys.executable, "-m", "fedstats_app.cli", "demo")
# All that can take long on a busy machine: Flower's processes need seconds of processor time each before they answer.
PATIENCE = 900.0
# Enough for the script's federation and one beside it.
PORTS = 100


@dataclass
class Deployment:
    """A federation on this machine.

    Attributes
    ----------
    folder : Path
        Keys, certificates, logs.
    port : int
        Of the SuperLink; its SuperNodes have those after it.
    environment : dict
        Of every command.
    certified : bool
        Whether there are certificates and keys.
    """

    folder: Path
    port: int
    environment: dict[str, str]
    certified: bool = True
    started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    commands: int = 0

    @classmethod
    def beside(cls, script: Script) -> Deployment:
        """Start a SuperLink of its own, with the certificates that the script made, which ``flwr`` knows as demo."""
        folder = script.folder.parent / "beside"
        made = cls(folder, script.port + PORTS // 2, {**script.environment, "FLWR_HOME": str(folder / "flwr")})
        (folder / "flwr").mkdir(parents=True)
        for name in ("ca.crt", "server.pem", "server.key"):
            shutil.copy(script.folder / name, folder)
        (folder / "flwr" / "config.toml").write_text(commands.connection(folder, made.port))
        made._start("superlink", commands.superlink(folder, made.port), {})
        made._wait_for_superlink()
        return made

    @classmethod
    def insecure(cls, home: Path) -> Deployment:
        """Start a SuperLink without certificates, which ``flwr`` knows as demo."""
        folder, port = home / "insecure", free_range(PORTS)
        (folder / "flwr").mkdir(parents=True)
        made = cls(folder, port, {**script_environment(home), "FLWR_HOME": str(folder / "flwr")}, certified=False)
        config = f'[superlink.demo]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        (folder / "flwr" / "config.toml").write_text(config)
        words = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--insecure"]
        made._start("superlink", [*words, "--disable-runtime-dependency-installation"], {})
        made._wait_for_superlink()
        return made

    def _wait_for_superlink(self) -> None:
        wait_until(lambda: "Uvicorn running on" in self.log("superlink"), "it is up", lambda: self.log("superlink"))

    def command(self, *words: str, cwd: Path = REPOSITORY) -> subprocess.Popen[bytes]:
        """Start a command of Flower's, its output to a log of its own."""
        self.commands += 1
        return self._start(f"{words[0]}-{self.commands}", words, {}, cwd)

    def register(self, *names: str) -> None:
        """Make keys and register them, all at a time."""
        running = []
        for name in names:
            self.make_key(name)
            running.append(self.command(*commands.register(self.folder, name)))
        for process in running:
            if process.wait(PATIENCE):
                raise AssertionError(f"registering failed; see {self.folder}/flwr-*.log")

    def make_key(self, name: str) -> None:
        make_node_key(self.folder / f"{name}.key")

    def supernode(
        self,
        name: str,
        node_config: str,
        *more: str,
        certificates: Path | None = None,
        key: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode as the script does."""
        where = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(self.port + len(self.started))]
        trust = [
            "--root-certificates", str(certificates or self.folder / "ca.crt"),
            "--auth-supernode-private-key", str(key or self.folder / f"{name}.key"),
        ]  # fmt: skip
        words = ["fedstats", "node", *where, *(trust if self.certified else ["--insecure"]), *more]
        return self._start(name, [*words, "--node-config", node_config], environment or {})

    def _start(
        self, name: str, words: list[str] | tuple[str, ...], more: Mapping[str, str], cwd: Path = REPOSITORY
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**self.environment, **more},
            )
        self.started[f"{name}-{process.pid}"] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def node_id(self, name: str) -> str:
        """The id that the SuperLink gave to a node, from its log."""
        wait_until(lambda: "SuperNode ID: " in self.log(name), f"{name} is activated", lambda: self.log(name))
        return self.log(name).split("SuperNode ID: ")[1].split()[0]

    def end(self) -> None:
        """End what the test started, at once: nodes that are told to end try to tell a SuperLink that is gone."""
        for process in self.started.values():
            process.kill()
        for process in self.started.values():
            process.wait(60)
        wait_until(lambda: not processes_naming(str(self.folder)), "all processes of the federation have ended")


@dataclass
class Script(Deployment):
    """The federation of `fedstats demo`: its folder holds the images too.

    Attributes
    ----------
    process : subprocess.Popen
        The command itself.
    """

    process: subprocess.Popen[bytes] = field(kw_only=True)

    @property
    def output(self) -> str:
        return (self.folder.parent / "demo.out").read_text()

    def wait_for(self, text: str) -> None:
        """Wait until the script has said something.

        Raises
        ------
        AssertionError
            If it ends before it has.
        """
        wait_until(lambda: text in self.output or self.process.poll() is not None, f"{text!r}", lambda: self.output)
        if text not in self.output:
            raise AssertionError(f"the command ended with {self.process.poll()}:\n{self.output}")


@contextmanager
def demo(home: Path) -> Iterator[Script]:
    """Run `fedstats demo` with ``--keep``, and give what it does while it does it.

    At the end the command is told to end, as by Ctrl-C, and nothing of what it started may be left.
    """
    port, folder = free_range(PORTS), home / "demo"
    home.mkdir(parents=True, exist_ok=True)
    environment = script_environment(home)
    with (home / "demo.out").open("wb") as log:
        process = subprocess.Popen(
            [*DEMO, "--dir", str(folder), "--port", str(port), "--keep"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment,
        )
    offline = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    made = Script(folder, port, {**environment, **offline, "FLWR_HOME": str(folder / "flwr")}, process=process)
    try:
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        made.end()


def script_environment(home: Path) -> dict[str, str]:
    """Return the environment of a user's terminal, without a proxy."""
    return environment_at(home, "flwr_", "fedstats_", "http_proxy", "https_proxy", "all_proxy", "no_proxy")


def free_range(number: int) -> int:
    """Return the first of this many free ports in a row, of those of this worker: others take seconds to listen."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 6
    for first in range(20000 + 2000 * worker, 22000 + 2000 * worker, number):
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
