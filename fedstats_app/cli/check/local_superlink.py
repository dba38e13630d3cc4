"""Who has the port at which `flwr run` looks for this machine's SuperLink, and would take a run.

`flwr run .` sends a simulation to whatever answers at a fixed port of this machine, and starts a SuperLink there only
if nothing does. On a machine with several users that may be somebody else's: the run is then done by their process,
with their Python, and what it writes is theirs.
"""

from __future__ import annotations

import http.client
import os
import socket
from pathlib import Path

from fedstats_app.cli.check.finding import Finding

PORT_VARIABLE = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
CONTROL_VARIABLE = "FLWR_LOCAL_CONTROL_API_PORT"
# Flower's own.
DEFAULT_PORT = "39091"
_OTHER_PORTS = f"choose ports of your own, such as: export {PORT_VARIABLE}=39191 {CONTROL_VARIABLE}=39193"
_CHECK = "local SuperLink"
_LISTENS = "0A"


def check_local_superlink(timeout: float = 1.0) -> Finding:
    """Tell whose SuperLink would simulate.

    Parameters
    ----------
    timeout : float
        Seconds for an answer of whatever has the port.
    """
    text = os.environ.get(PORT_VARIABLE, DEFAULT_PORT)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        return Finding(_CHECK, "FAIL", f"{PORT_VARIABLE} must be a port from 1 to 65535, got {text!r}", _OTHER_PORTS)
    port = int(text)
    try:
        socket.create_connection(("127.0.0.1", port), timeout).close()
    except OSError:
        return Finding(_CHECK, "ok", f"port {port} is free: flwr run will start one")
    if not _is_healthy(port, timeout):
        message = f"what has port {port} is no SuperLink, so Flower could not start one there"
        return Finding(_CHECK, "FAIL", message, _OTHER_PORTS)
    owner = listener_owner(port)
    if owner is None:
        message = f"a SuperLink has port {port}, and whose it is cannot be seen on this system; runs go to it"
        return Finding(_CHECK, "warning", message, f"if it is not yours, {_OTHER_PORTS}")
    if owner != os.getuid():
        message = (
            f"the SuperLink at port {port} belongs to another user (id {owner}): your run would run there as theirs"
        )
        return Finding(_CHECK, "FAIL", message, _OTHER_PORTS)
    message = f"your own local SuperLink has port {port}; runs take the variables and Python it was started with"
    return Finding(_CHECK, "ok", message)


def listener_owner(port: int) -> int | None:
    """Return the id of the user whose process listens on a port of 127.0.0.1; None where the system does not tell."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                return int(fields[7])
    return None


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
