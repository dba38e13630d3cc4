"""Whether a SuperLink answers, over TLS if it should, and who is connected to it."""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from fedstats_app.cli.check.certificates import check_dates, check_pair
from fedstats_app.cli.check.finding import Finding

# Starting Flower's command takes some seconds of its own.
LIST_TIMEOUT_SECONDS = 30.0
# In Flower's configuration this name stands for its simulation on this machine.
SIMULATION = "local"


def parse_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address stands in brackets.

    Raises
    ------
    ValueError
        If it is not of this form.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or "/" in host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"--superlink must be HOST:PORT with a port from 1 to 65535, without https://, got {address!r}"
        )
    return host, int(port)


def check_superlink(
    address: str, root_file: str, authorities: list[x509.Certificate], timeout: float
) -> Iterator[Finding]:
    """Connect to a SuperLink as a SuperNode does, and check the certificate that it shows.

    Parameters
    ----------
    address : str
        HOST:PORT.
    root_file : str
        PEM file of root certificates, "" for a connection without TLS.
    authorities : list of Certificate
        What is in that file.
    timeout : float
        Seconds for finding the host, and for each connection.
    """
    host, port = parse_address(address)
    try:
        _connect(host, port, timeout).close()
    except OSError as error:
        advice = "is it running, with --host 0.0.0.0 for other machines, and does a firewall let this port through?"
        yield Finding("SuperLink", "FAIL", f"{address} does not answer: {_reason(error)}", advice)
        return
    shown = _shown_certificate(host, port, timeout)
    if not root_file:
        yield _without_tls(address, speaks_tls=shown is not None)
        return
    if shown is None:
        message = f"{address} answers, but not over TLS"
        yield Finding("SuperLink", "FAIL", message, "start it with --ssl-certfile, --ssl-keyfile and --ssl-ca-certfile")
        return
    yield check_dates("certificate", shown)
    yield from check_pair(shown, authorities, host)
    try:
        context = ssl.create_default_context(cafile=str(Path(root_file).expanduser()))
        version, _ = _handshake(context, host, port, timeout)
    except OSError as error:  # ssl.SSLError is one
        advice = "see the lines about certificates above"
        yield Finding("SuperLink", "FAIL", f"{address}: the TLS connection is refused: {_reason(error)}", advice)
    else:
        yield Finding("SuperLink", "ok", f"{address} answers over {version} and its certificate is accepted")


def _handshake(context: ssl.SSLContext, host: str, port: int, timeout: float) -> tuple[str, bytes | None]:
    """Finish a TLS handshake; return its version, and the certificate that was shown."""
    with (
        _connect(host, port, timeout) as connection,
        context.wrap_socket(connection, server_hostname=host) as secured,
    ):
        return secured.version() or "TLS", secured.getpeercert(binary_form=True)


def _shown_certificate(host: str, port: int, timeout: float) -> x509.Certificate | None:
    """Return the certificate that a server shows, right or wrong; None if it does not speak TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent over this connection: it only asks to see a certificate, which is then checked.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _, shown = _handshake(context, host, port, timeout)
    except OSError:
        return None
    return None if shown is None else x509.load_der_x509_certificate(shown)


def _without_tls(address: str, *, speaks_tls: bool) -> Finding:
    if speaks_tls:
        message = f"{address} speaks TLS, and no root certificates were given"
        advice = "give --root-certificates here and to the node: with --insecure it would wait for ever"
        return Finding("SuperLink", "FAIL", message, advice)
    message = f"{address} answers, without TLS: whoever is on the way can read and change what nodes send"
    return Finding("SuperLink", "warning", message, "start SuperLink and SuperNodes with certificates")


def _connect(host: str, port: int, timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    last: OSError = TimeoutError(f"no answer within {timeout:g} s")
    for family, kind, protocol, _, where in _resolve(host, port, timeout):
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(max(deadline - time.monotonic(), 0.05))
        try:
            connection.connect(where)
        except OSError as error:
            connection.close()
            last = error
        else:
            connection.settimeout(timeout)
            return connection
    raise last


_Resolved = list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]]


def _resolve(host: str, port: int, timeout: float) -> _Resolved:
    """Look a host up; the system's own call has no time limit, so it gets a thread that may be left behind."""
    answers: queue.SimpleQueue[_Resolved | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))  # type: ignore[arg-type]  # no raw families
        except OSError as error:
            answers.put(error)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        answer = answers.get(timeout=timeout)
    except queue.Empty:
        raise TimeoutError(f"the name {host} was not found within {timeout:g} s") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def check_supernodes(connection: str) -> Finding:
    """Ask Flower's own command which SuperNodes there are, over a connection of its config.toml."""
    if connection == SIMULATION:
        message = f"{connection!r} is Flower's simulation on this machine, which has no SuperNodes"
        return Finding("SuperNodes", "FAIL", message, "name the connection of your SuperLink in Flower's config.toml")
    beside = Path(sys.executable).with_name("flwr")
    command = str(beside) if beside.is_file() else shutil.which("flwr")
    if command is None:
        return Finding("SuperNodes", "FAIL", "the command flwr is not on this machine", "install flwr")
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    try:
        done = subprocess.run(
            [command, "supernode", "list", connection, "--format", "json"],
            capture_output=True,
            text=True,
            timeout=LIST_TIMEOUT_SECONDS,
            env={**os.environ, **quiet},
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        message = f"`flwr supernode list {connection}` did not answer within {LIST_TIMEOUT_SECONDS:g} s"
        return Finding("SuperNodes", "FAIL", message, "check its address in Flower's config.toml")
    return supernodes_finding(connection, done.stdout, done.stderr)


def supernodes_finding(connection: str, output: str, errors: str) -> Finding:
    """Read what `flwr supernode list --format json` printed."""
    try:
        listed = json.loads(output)
        states = Counter(str(node["status"]) for node in listed["nodes"])
    except (ValueError, KeyError, TypeError):
        message = f"`flwr supernode list {connection}` gave no list; it said: {_complaint(output, errors)}"
        return Finding("SuperNodes", "FAIL", message, "check the connection in Flower's config.toml")
    counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "none"
    if not states["online"]:
        message = f"{counts}, so a run would wait for nodes in vain"
        return Finding("SuperNodes", "warning", message, "start `fedstats node` on the nodes, and see its log")
    return Finding("SuperNodes", "ok", counts)


def _complaint(output: str, errors: str) -> str:
    """Return what Flower's command said instead of a list, in one line."""
    try:
        said = str(json.loads(output)["error-message"])
    except (ValueError, KeyError, TypeError):
        said = output or errors
    return " ".join(said.split())[:300] or "nothing"
