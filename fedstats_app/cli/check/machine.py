"""Versions of Python and the libraries, and whose SuperLink `flwr run` would take on this machine.

`flwr run .` sends a simulation to whatever answers at a fixed port of this machine, and starts a SuperLink there only
if nothing does. On a shared machine that may be another user's SuperLink: the run then happens in their process, with
their Python, and the results are theirs.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import platform
import socket
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fedstats_app import __version__
from fedstats_app.cli.new import PROJECT, app_files
from fedstats_app.cli.terminal import Finding, Level

# As in deployment/requirements-node.txt; a simulation needs the second line too.
_OF_A_NODE = {"flwr", "torch", "numpy", "pillow", "safetensors"}
_OF_A_SIMULATION = {"flwr-datasets", "torchvision", "matplotlib"}
PORT_VARIABLE = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
CONTROL_VARIABLE = "FLWR_LOCAL_CONTROL_API_PORT"
# Flower's own.
DEFAULT_PORT = "39091"
_OTHER_PORTS = f"choose ports of your own, such as: export {PORT_VARIABLE}=39191 {CONTROL_VARIABLE}=39193"
_LISTENS = "0A"


def check_versions(*, simulation: bool) -> Iterator[Finding]:
    """Compare Python and the libraries with what pyproject.toml requires; Ray is needed by a simulation only."""
    project = tomllib.loads((app_files() / PROJECT).read_text(encoding="utf-8"))["project"]
    python, supported = platform.python_version(), project["requires-python"]
    where = f"{python} on {platform.system()} {platform.machine()}"
    if SpecifierSet(supported).contains(python, prereleases=True):
        yield Finding("Python", "ok", where)
    else:
        yield Finding("Python", "FAIL", f"{where}; supported are versions {supported}", "use one of these")
    wrong, listed = [], []
    for library in map(Requirement, project["dependencies"]):
        version = installed_version(library.name)
        if library.name not in _OF_A_NODE | (_OF_A_SIMULATION if simulation else set()):
            continue
        if not version:
            wrong.append(f"{library.name} is not installed (needed: {library.specifier})")
        elif not library.specifier.contains(version, prereleases=True):
            wrong.append(f"{library.name} {version} is not supported (needed: {library.specifier})")
        listed.append(f"{library.name} {version}")
    if wrong:
        yield Finding("libraries", "FAIL", "; ".join(wrong), f"install this app's requirements for {sys.executable}")
    else:
        yield Finding("libraries", "ok", f"fedstats-app {__version__}; {', '.join(listed)}")
    if ray := installed_version("ray"):
        yield Finding("simulation", "ok", f"ray {ray}")
    elif simulation:
        message = "ray is not installed: `flwr run .` cannot simulate on this machine"
        yield Finding("simulation", "warning", message, "install flwr[simulation]; SuperNodes do without it")
    else:
        yield Finding("simulation", "ok", "ray is not installed; a SuperNode does not need it")


def installed_version(name: str) -> str:
    """Read a library's version, "" if it is not installed; it is not imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_local_superlink(timeout: float = 1.0) -> Finding:
    """Find out whose SuperLink would simulate; `timeout` is in seconds."""
    level, message = _local_superlink(os.environ.get(PORT_VARIABLE, DEFAULT_PORT), timeout)
    advice = {"ok": "", "warning": f"if it is not yours, {_OTHER_PORTS}", "FAIL": _OTHER_PORTS}[level]
    return Finding("local SuperLink", level, message, advice)


def _local_superlink(text: str, timeout: float) -> tuple[Level, str]:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        return "FAIL", f"{PORT_VARIABLE} must be a port from 1 to 65535, got {text!r}"
    port = int(text)
    try:
        socket.create_connection(("127.0.0.1", port), timeout).close()
    except OSError:
        return "ok", f"port {port} is free: flwr run will start one"
    if not _is_healthy(port, timeout):
        return "FAIL", f"something other than a SuperLink has port {port}, so Flower could not start one there"
    owner = listener_owner(port)
    if owner is None:
        return "warning", f"a SuperLink has port {port}, and whose it is cannot be seen on this system; runs go to it"
    if owner != os.getuid():
        return (
            "FAIL",
            f"the SuperLink at port {port} belongs to another user (id {owner}): your run would run there as theirs",
        )
    return "ok", f"your own local SuperLink has port {port}; runs take the variables and Python it was started with"


def _is_healthy(port: int, timeout: float) -> bool:
    """Ask as `flwr run` does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", "/health")
        return 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def listener_owner(port: int) -> int | None:
    """Find the id of the user whose process listens on a port of 127.0.0.1; None if the system does not tell."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for fields in map(str.split, table.read_text(encoding="ascii").splitlines()[1:] if table.exists() else ()):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                return int(fields[7])
    return None
