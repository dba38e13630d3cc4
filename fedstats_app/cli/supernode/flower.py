"""Flower's SuperNode with processes of ours: the one module that knows Flower's insides.

`flower-supernode --isolation process` runs no app. It waits for a process from outside to ask for a task, and each task
for a process that brings its reply. Both are ours, so where a later Flower means something else by what is imported
here (:mod:`~fedstats_app.cli.supernode.versions` looks at all of it first), no stranger's code is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.app_utils import _pid_exists
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fedstats_app.cli.supernode import RefusedApp, project_of
from fedstats_app.cli.supernode.versions import TESTED

# Both make a SuperNode's task; an agent's would else leave its message, and all after it, unanswered.
TASK_TYPES = ("flwr-clientapp", "flwr-agentapp")
# Flower's own waits for 1.
SECONDS_BETWEEN_POLLS = 0.5
SECONDS_TO_END = 5.0
SECONDS_TO_START = 30.0
# A process with torch in it must not fork where a system's libraries do not expect it (macOS).
FORKS = sys.platform == "linux"
# So long after the last message the memory is given back that torch takes: some 300 MB.
IDLE_SECONDS = 300.0

logger = logging.getLogger("fedstats_app")


@dataclass(frozen=True)
class RuntimeAddress:
    """Address at which the SuperNode gives out tasks, on this machine.

    Attributes
    ----------
    address : str
        ``host:port``.
    root_certificates : str
        File to verify it by; "" where it has no TLS.
    """

    address: str
    root_certificates: str = ""

    def client(self, *interceptors: Any, **more: Any) -> RuntimeHttpClient:
        """Return a client that speaks to it."""
        file = Path(self.root_certificates).expanduser() if self.root_certificates else None
        return RuntimeHttpClient.from_server_address(
            self.address,
            file is None,
            None if file is None else file.read_bytes(),
            [RuntimeVersionHttpInterceptor(component_name="fedstats-app"), *interceptors],
            **more,
        )


def node_config_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the node-config among the words of `flower-supernode`; wrong words end the process, as Flower's own do."""
    from flwr.common.config import parse_config_args

    config = _parsed(words).node_config
    return parse_config_args([config]) if config else {}


def run_supernode(words: Sequence[str], command: Callable[[RuntimeAddress], list[str]]) -> None:
    """Run a SuperNode with these words of `flower-supernode` in this process until it ends, with a process per message.

    `command` gives the words that start what answers tasks; their tokens come by its standard input, one a line.
    """
    from flwr.supercore.address import resolve_bind_address
    from flwr.supernode.cli import flower_supernode

    parsed = _parsed(words)
    _ask_this_machine_itself(parsed.host)
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    runtime = RuntimeAddress(resolve_bind_address(f"{host}:{parsed.port}"), parsed.ssl_ca_certfile or "")
    _read_bundles_within_bounds()
    threading.Thread(
        target=_start_tasks, args=(runtime, command(runtime), parsed.superexec_auth_secret_file), daemon=True
    ).start()
    # The last word counts: whatever the others say, this SuperNode starts no app itself.
    sys.argv = ["flower-supernode", *words, "--isolation", "process"]
    flower_supernode()


def _ask_this_machine_itself(host: str) -> None:
    """Have this process, and those that it starts, reach this machine's own addresses through no proxy."""
    for name in ("no_proxy", "NO_PROXY"):  # the first wins where both are set
        own = [entry for entry in os.environ.get(name, os.environ.get("NO_PROXY", "")).split(",") if entry]
        os.environ[name] = ",".join(dict.fromkeys([*own, "127.0.0.1", "localhost", "::1", host]))


def _parsed(words: Sequence[str]) -> Any:
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    parser = _parse_args_run_supernode()
    parser.prog = "fedstats node"
    return parser.parse_args(list(words))


def _read_bundles_within_bounds() -> None:
    """Let the SuperNode itself, which reads each run's configuration, survive a bundle made to end it."""
    supernode: Any = importlib.import_module("flwr.supernode.start_client_internal")

    def within_bounds(content: bytes, run: Run) -> dict[str, Any]:
        try:
            return run_config_of(content, run)
        except RefusedApp:
            return {}  # the process for the message comes to the same, and says so

    supernode.get_fused_config_from_fab = within_bounds


def run_config_of(content: bytes, run: Run) -> dict[str, Any]:
    """Return a run's configuration: the bundle's defaults with what the run overrides; no file is written.

    Raises
    ------
    RefusedApp
        If the bundle has none, or the run overrides what is not in it.
    """
    project_of(content)
    try:
        return dict(get_fused_config_from_fab(content, run))
    except Exception as error:  # a stranger's file may raise anything
        raise RefusedApp(f"its configuration cannot be used: {error}") from error


class Answering:
    """Has tasks answered by a process that is there already, or by a new one each where the system cannot fork.

    Parameters
    ----------
    words : list of str
        The command line of the process. It says by a byte that it can take a task, at first and after each.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._begun: list[subprocess.Popen[bytes]] = []
        self._line: socket.socket | None = None
        self._is_ready = False
        self._last = float("inf")

    def is_ready(self) -> bool:
        """Wait for a process that can take a task, started if there is none; False if it died.

        Flower gives up a task of which nothing is heard for long, as from a process that is still starting.
        """
        if not FORKS:
            return True
        if time.monotonic() - self._last > IDLE_SECONDS:
            self.close()
        if self._line is None:
            self._line, its = socket.socketpair()
            with its:
                self._start(its)
        with contextlib.suppress(ConnectionError):  # it died with a token unread
            self._is_ready = self._is_ready or bool(self._line.recv(1))
        if not self._is_ready:
            self.close()
        return self._is_ready

    def answer(self, token: str) -> None:
        """Hand a task over."""
        line = f"{token}\n".encode()
        if not FORKS:
            with contextlib.suppress(BrokenPipeError), self._start(subprocess.PIPE).stdin as pipe:  # type: ignore[union-attr]  # it is a pipe
                pipe.write(line)
            return
        while self.is_ready() and self._line is not None:
            try:
                self._line.sendall(line)
            except OSError:  # it has died since it was ready
                self.close()
            else:
                self._is_ready, self._last = False, time.monotonic()
                return

    def close(self) -> None:
        """Give out no more tasks; the one in progress continues."""
        if self._line is not None:
            self._line.close()
        self._line, self._is_ready, self._last = None, False, float("inf")

    def _start(self, standard_input: Any) -> subprocess.Popen[bytes]:
        self._begun = [process for process in self._begun if process.poll() is None]
        self._begun.append(subprocess.Popen(self._words, stdin=standard_input))
        return self._begun[-1]


def _start_tasks(runtime: RuntimeAddress, words: Sequence[str], secret_file: str | None) -> None:
    """Have every task answered, for ever; without this thread the SuperNode is of no use, and ends."""
    from flwr.supercore.auth import load_superexec_auth_secret

    try:
        secret, protected = load_superexec_auth_secret(secret_file=secret_file), {"/flwr.proto.Runtime/AcquireTask"}
        own = [SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected)] if secret else []
        client, answering = runtime.client(*own), Answering(words)
        reached, logged = time.monotonic(), ""
        while True:
            time.sleep(SECONDS_BETWEEN_POLLS)
            if not answering.is_ready():
                continue
            try:
                task = client.AcquireTask(AcquireTaskRequest(supported_task_types=TASK_TYPES))
            except httpx.HTTPError as error:
                patience = 0.0 if isinstance(error, httpx.HTTPStatusError) else SECONDS_TO_START
                if str(error) != logged and time.monotonic() - reached > patience:
                    logged = str(error)
                    logger.error("%s", advice_on(error, runtime.address))
                continue
            reached, logged = time.monotonic(), ""
            if task.token:
                answering.answer(task.token)
    except Exception:
        logger.exception("no more messages can be answered: this SuperNode ends")
        os.kill(os.getpid(), signal.SIGTERM)


def advice_on(error: httpx.HTTPError, address: str) -> str:
    """Say that this node's own SuperNode gives out no tasks, why, and what to do."""
    reason = str(error).partition("\n")[0]
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
    advice = "restart the node"
    if status in (401, 403):
        advice = "give --superexec-auth-secret-file the file that the SuperNode has, and restart the node"
    elif status:
        advice = f"another program may have this port, or another Flower: choose a free --port; {TESTED[-1]} was tested"
    return f"messages go unanswered: the SuperNode at {address} gives out no tasks ({reason}): {advice}"


def answer_task(
    runtime: RuntimeAddress,
    token: str,
    parent: int,
    answer: Callable[[Message, Context, bytes, Callable[[], dict[str, Any]]], Message],
) -> None:
    """Answer the message of a task, with what `answer` makes of message, context, bundle, and the run's configuration.

    A process that fails before it has a reply says nothing: after a while the SuperNode says so for it. It ends with
    the SuperNode's process, the parent.
    """
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    client = runtime.client(RuntimeTokenHttpInterceptor(token), retry_invoker=make_simple_http_retry_invoker())
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    message, context, run, fab = pull_task_input(client)
    reply = answer(message, context, fab.content, lambda: run_config_of(fab.content, run))
    push_message(client, reply, context)
    push_task_output(client=client, context=context, sub_status=SubStatus.COMPLETED, details="")
    heartbeat.stop()
    client.close()


def end_with(process: int) -> None:
    """End this process some seconds after another, if it does not by itself, told as by Ctrl-C.

    Flower's threads try for ever to reach a SuperNode that is gone.
    """
    while _pid_exists(process):
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(SECONDS_TO_END)
    os._exit(1)


def client_app_of(content: bytes, folder: Path) -> ClientApp:
    """Unpack a bundle, whose code may run, into an empty folder and return its ClientApp, as Flower does.

    The folder is its own: where Flower keeps bundles, it tells them apart by 8 digits of their SHA-256 only.
    """
    from flwr.cli.install import install_from_fab
    from flwr.clientapp.client_app import LoadClientAppError
    from flwr.supercore.object_ref import load_app

    project = install_from_fab(content, install_dir=folder, skip_prompt=True)
    reference = project_of(content)["tool"]["flwr"]["app"]["components"]["clientapp"]
    # Its modules, not those of this package, which may have the same names.
    for name in [name for name in sys.modules if name.split(".")[0] == "fedstats_app"]:
        del sys.modules[name]
    app = load_app(reference, LoadClientAppError, project)
    if not isinstance(app, ClientApp):
        raise TypeError(f"{reference} must be a ClientApp, got {type(app).__name__}")
    return app
