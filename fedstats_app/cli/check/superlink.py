"""Checks of root certificates, and of a SuperLink: whether it answers, over TLS if it should."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from fedstats_app.cli.terminal import Finding

WARN_BEFORE_END = timedelta(days=30)
# For each connection.
_SECONDS = 5.0


def check_certificates(root_file: str) -> Iterator[Finding]:
    """Check the root certificates in a PEM file."""
    try:
        certificates = x509.load_pem_x509_certificates(Path(root_file).expanduser().read_bytes())
    except (OSError, ValueError) as error:
        advice = "give a PEM file, such as the ca.crt that signed the SuperLink's"
        yield Finding("root certificate", "FAIL", f"{root_file} cannot be read: {error}", advice)
    else:
        yield from (check_dates("root certificate", certificate) for certificate in certificates)


def check_dates(name: str, certificate: x509.Certificate) -> Finding:
    """Check that a certificate is valid now and for some time."""
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    period = f"{certificate.subject.rfc4514_string()}, valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}"
    if not start <= now <= end:
        return Finding(name, "FAIL", f"{period}: not valid now", "make a new certificate, or set this machine's clock")
    if now + WARN_BEFORE_END > end:
        return Finding(name, "warning", f"{period}: ends in {(end - now).days} days", "make a new certificate soon")
    return Finding(name, "ok", period)


def check_superlink(address: tuple[str, int], root_file: str, timeout: float = _SECONDS) -> Iterator[Finding]:
    """Connect to a SuperLink at (host, port) as a SuperNode does, with TLS if there is a PEM file of root certificates.

    `timeout` is in seconds, for each connection.
    """
    host, port = address
    try:
        connection = socket.create_connection(address, timeout)
    except OSError as error:
        advice = "is it running, with --host 0.0.0.0 for other machines, and does a firewall let this port through?"
        yield Finding("SuperLink", "FAIL", f"{host}:{port} does not answer: {error.strerror or error}", advice)
        return
    context = ssl.create_default_context(cafile=str(Path(root_file).expanduser()) if root_file else None)
    if not root_file:  # nothing is sent: the question is only whether the server speaks TLS
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with connection, context.wrap_socket(connection, server_hostname=host) as secured:
            version, shown = secured.version(), secured.getpeercert(binary_form=True)
            # On the SuperLink's own machine the control API belongs there.
            is_remote = not ipaddress.ip_address(secured.getpeername()[0]).is_loopback
            is_open = bool(root_file) and is_remote and control_api_answers(secured)
    except ssl.SSLCertVerificationError as error:
        message = f"{host}:{port}: the TLS connection is refused: {error.verify_message}"
        yield Finding("SuperLink", "FAIL", message, "sign its certificate by this root, for this address, or renew it")
    except OSError:
        if root_file:
            advice = "start it with --ssl-certfile, --ssl-keyfile and --ssl-ca-certfile"
            yield Finding("SuperLink", "FAIL", f"{host}:{port} answers, but not over TLS", advice)
        else:
            message = f"{host}:{port} answers without TLS: others on the network can read and change what nodes send"
            yield Finding("SuperLink", "warning", message, "start SuperLink and SuperNodes with certificates")
    else:
        if not root_file:
            message = f"{host}:{port} speaks TLS, and no root certificates were given"
            advice = "give --root-certificates here and to the node: with --insecure it would wait for ever"
            yield Finding("SuperLink", "FAIL", message, advice)
            return
        yield check_dates("certificate", x509.load_der_x509_certificate(shown or b""))
        yield Finding("SuperLink", "ok", f"{host}:{port} answers over {version} and its certificate is accepted")
        if is_open:
            message = f"{host}:{port} also takes commands: a stranger with ca.crt can register nodes and start runs"
            advice = "let other machines reach /v1/fleet/ only, by deployment/nginx.conf (docs/deployment.md)"
            yield Finding("control API", "warning", message, advice)


def control_api_answers(connection: socket.socket) -> bool:
    """Return whether there is a path for `flwr` commands: any status but 403 or 404. An empty request is harmless."""
    try:
        connection.sendall(b"POST /v1/control/list-nodes HTTP/1.1\r\nHost: superlink\r\nContent-Length: 0\r\n\r\n")
        status = connection.recv(64).split()
    except OSError:
        return False
    return len(status) > 1 and status[0].startswith(b"HTTP/") and status[1] not in (b"403", b"404")
