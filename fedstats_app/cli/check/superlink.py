"""Whether root certificates are valid, and whether a SuperLink answers, over TLS if it should."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from fedstats_app.cli.terminal import Finding

WARN_BEFORE_END = timedelta(days=30)


def check_network(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Check the root certificates that the arguments of `fedstats check` name, and the SuperLink."""
    root_file = arguments.root_certificates
    if root_file:
        try:
            yield from (check_dates("root certificate", one) for one in read_certificates(root_file))
        except (OSError, ValueError) as error:
            advice = "give a PEM file, such as the ca.crt that signed the SuperLink's"
            yield Finding("root certificate", "FAIL", str(error), advice)
            return
    if arguments.superlink:
        yield from check_superlink(arguments.superlink, root_file, arguments.timeout)


def read_certificates(path: str) -> list[x509.Certificate]:
    """Read one or several certificates of a PEM file.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If there is no certificate in it.
    """
    try:
        return x509.load_pem_x509_certificates(Path(path).expanduser().read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} holds no certificate in PEM form: {error}") from error


def check_dates(what: str, certificate: x509.Certificate) -> Finding:
    """Check that a certificate is valid now and for some time."""
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    period = f"{certificate.subject.rfc4514_string()}, valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}"
    if now > end:
        return Finding(what, "FAIL", f"{period}: expired", "make a new certificate")
    if now < start:
        return Finding(what, "FAIL", f"{period}: not valid yet", "is this machine's clock right?")
    if now + WARN_BEFORE_END > end:
        return Finding(what, "warning", f"{period}: ends in {(end - now).days} days", "make a new certificate soon")
    return Finding(what, "ok", period)


def parse_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address stands in brackets.

    Raises
    ------
    ValueError
        If it is not of this form.
    """
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{address}")
        if parts.netloc == address and parts.hostname and parts.port:
            return parts.hostname, parts.port
    raise ValueError(f"--superlink must be HOST:PORT with a port from 1 to 65535, without https://, got {address!r}")


def check_superlink(address: str, root_file: str, timeout: float) -> Iterator[Finding]:
    """Connect to a SuperLink at HOST:PORT as a SuperNode does, with TLS if there is a PEM file of root certificates.

    `timeout` is in seconds, for finding the host and for each connection.
    """
    try:
        _connect(address, timeout).close()
    except OSError as error:
        advice = "is it running, with --host 0.0.0.0 for other machines, and does a firewall let this port through?"
        reason = error.strerror or str(error)
        yield Finding("SuperLink", "FAIL", f"{address} does not answer: {reason}", advice)
        return
    if root_file:
        context = ssl.create_default_context(cafile=str(Path(root_file).expanduser()))
    else:
        # Nothing is sent over this connection: it only asks whether the server speaks TLS.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            _connect(address, timeout) as connection,
            context.wrap_socket(connection, server_hostname=parse_address(address)[0]) as secured,
        ):
            version, shown = secured.version(), secured.getpeercert(binary_form=True)
            strangers = root_file and _answers_strangers(secured)
    except ssl.SSLCertVerificationError as error:
        message = f"{address}: the TLS connection is refused: {error.verify_message}"
        yield Finding("SuperLink", "FAIL", message, "sign its certificate by this root, for this address, or renew it")
    except OSError:
        yield _without_tls(address, needed=bool(root_file))
    else:
        if root_file:
            yield check_dates("certificate", x509.load_der_x509_certificate(shown or b""))
            yield Finding("SuperLink", "ok", f"{address} answers over {version} and its certificate is accepted")
            if strangers:
                message = f"{address} also takes commands: a stranger with ca.crt can register nodes and start runs"
                advice = "let other machines reach /v1/fleet/ only, by deployment/nginx.conf (docs/deployment.md)"
                yield Finding("control API", "warning", message, advice)
        else:
            message = f"{address} speaks TLS, and no root certificates were given"
            advice = "give --root-certificates here and to the node: with --insecure it would wait for ever"
            yield Finding("SuperLink", "FAIL", message, advice)


def _answers_strangers(secured: ssl.SSLSocket) -> bool:
    """Whether the other side of a connection has the control API: it refuses an empty request otherwise than a proxy.

    From a SuperLink on the same machine nothing follows: there it belongs.
    """
    return not ipaddress.ip_address(secured.getpeername()[0]).is_loopback and control_api_answers(secured)


def control_api_answers(connection: socket.socket) -> bool:
    """Whether there is a path for commands of `flwr`: any status but 403 or 404. An empty request changes nothing."""
    request = "POST /v1/control/list-nodes HTTP/1.1\r\nHost: superlink\r\nContent-Length: 0\r\n\r\n"
    try:
        connection.sendall(request.encode())
        status = connection.recv(64).split()
    except OSError:
        return False
    return len(status) > 1 and status[0].startswith(b"HTTP/") and status[1] not in (b"403", b"404")


def _without_tls(address: str, *, needed: bool) -> Finding:
    if needed:
        advice = "start it with --ssl-certfile, --ssl-keyfile and --ssl-ca-certfile"
        return Finding("SuperLink", "FAIL", f"{address} answers, but not over TLS", advice)
    message = f"{address} answers without TLS, so others on the network can read and change what nodes send"
    return Finding("SuperLink", "warning", message, "start SuperLink and SuperNodes with certificates")


def _connect(address: str, timeout: float) -> socket.socket:
    """Connect, after a search for the host in a thread that may be left behind: the system's has no time limit."""
    host, port = parse_address(address)

    def look_up() -> None:
        with contextlib.suppress(OSError):  # which connecting raises once more
            socket.getaddrinfo(host, port)

    search = threading.Thread(target=look_up, daemon=True)
    search.start()
    search.join(timeout)
    if search.is_alive():
        raise TimeoutError(f"the name {host} was not found within {timeout:g} s")
    return socket.create_connection((host, port), timeout)
