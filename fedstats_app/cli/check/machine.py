"""Versions of Python and the libraries, and the SuperLink that `flwr run` would take on this machine.

`flwr run .` sends a simulation to whatever answers at a fixed port of this machine, and starts a SuperLink there only
if nothing does. On a shared machine that may be another user's SuperLink: the run then happens in their process, with
their Python, and the results are theirs.
"""

from __future__ import annotations

import http.client
import importlib.metadata
import os
import platform
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.request import getproxies, proxy_bypass

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fedstats_app import __version__
from fedstats_app.cli.new import PROJECT, app_files
from fedstats_app.cli.terminal import Finding, Level

# As in deployment/requirements-node.txt; a simulation needs the others too.
_NODE_LIBRARIES = {"flwr", "torch", "numpy", "pillow", "safetensors"}
_SIMULATION_LIBRARIES = {"flwr-datasets", "torchvision", "matplotlib"}
PORT_VARIABLE = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
CONTROL_VARIABLE = "FLWR_LOCAL_CONTROL_API_PORT"
# Flower's own.
DEFAULT_PORT = "39091"
_LISTENS = "0A"
LOOPBACK = "127.0.0.1"


def check_versions(*, simulation: bool) -> Iterator[Finding]:
    """Compare Python and the libraries with what pyproject.toml requires; Ray is needed by a simulation only."""
    project = tomllib.loads((app_files() / PROJECT).read_text(encoding="utf-8"))["project"]
    needed = _NODE_LIBRARIES | (_SIMULATION_LIBRARIES if simulation else set())
    versions = {"Python": platform.python_version()} | {name: installed_version(name) for name in sorted(needed)}
    allowed = {library.name: library.specifier for library in map(Requirement, project["dependencies"])}
    allowed["Python"] = SpecifierSet(project["requires-python"])
    wrong = [
        f"{name} {version or 'is not installed'} (needed: {allowed[name]})"
        for name, version in versions.items()
        if not (version and allowed[name].contains(version, prereleases=True))
    ]
    if wrong:
        yield Finding("versions", "FAIL", "; ".join(wrong), f"install this app's requirements for {sys.executable}")
    else:
        listed = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding("versions", "ok", f"fedstats-app {__version__}, {listed}")
    if simulation and not installed_version("ray"):
        message = "ray is not installed: `flwr run .` cannot simulate on this machine"
        yield Finding("simulation", "warning", message, "install flwr[simulation]; SuperNodes do without it")


def installed_version(name: str) -> str:
    """Read a library's version, "" if it is not installed; it is not imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_proxy(host: str) -> Iterator[Finding]:
    """Look whether a SuperLink would be asked through a proxy, as Flower does where the environment names one."""
    if not {"http", "https", "all"} & getproxies().keys():
        return
    if proxy_bypass(host):
        yield Finding("proxy", "ok", f"not for {host} (NO_PROXY)")
        return
    level: Level = "FAIL" if host == LOOPBACK else "warning"
    names = ",".join(dict.fromkeys([LOOPBACK, "localhost", host]))
    message = f"the environment names a proxy, and Flower would reach {host} through it"
    yield Finding("proxy", level, message, f"export NO_PROXY={names}")


def check_local_superlink(timeout: float = 1.0) -> Finding:
    """Find out whose SuperLink would simulate; `timeout` is in seconds."""
    port = int(os.environ.get(PORT_VARIABLE, DEFAULT_PORT))
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout)
    try:
        connection.connect()
    except OSError:
        return Finding("local SuperLink", "ok", f"port {port} is free: flwr run will start one")
    try:
        connection.request("GET", "/health")  # as `flwr run` does
        is_healthy = 200 <= connection.getresponse().status < 300
    except (OSError, http.client.HTTPException):
        is_healthy = False
    finally:
        connection.close()
    owner = listener_owner(port)
    level: Level = "FAIL"
    if not is_healthy:
        message = f"something other than a SuperLink has port {port}, so Flower could not start one there"
    elif owner is None:
        level = "warning"
        message = f"a SuperLink has port {port}, and whose it is cannot be seen on this system; runs go to it"
    elif owner != os.getuid():
        message = f"the SuperLink at port {port} belongs to another user (id {owner}): runs there would be theirs"
    else:
        message = f"your own local SuperLink has port {port}; runs take the variables and Python it was started with"
        return Finding("local SuperLink", "ok", message)
    advice = f"choose ports of your own, such as: export {PORT_VARIABLE}=39191 {CONTROL_VARIABLE}=39193"
    return Finding("local SuperLink", level, message, advice)


def listener_owner(port: int) -> int | None:
    """Find the id of the user whose process listens on a port of 127.0.0.1; None if the system does not tell."""
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for fields in map(str.split, table.read_text(encoding="ascii").splitlines()[1:] if table.exists() else ()):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                return int(fields[7])
    return None
