"""Certificates made for a test, and a server that shows them."""

import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Signed:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, folder: Path, name: str) -> Path:
        path = folder / f"{name}.pem"
        path.write_bytes(self.certificate.public_bytes(PEM))
        private = self.key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        path.with_suffix(".key").write_bytes(private)
        return path


def sign(name: str, *, by: Signed | None = None, names: Sequence[str] = (), start: int = -1, end: int = 365) -> Signed:
    """Make a certificate, valid from and to so many days from now; an authority signs itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer, authority = (subject, key, True) if by is None else (by.certificate.subject, by.key, False)
    usage = (not authority, False, False, False, False, authority, authority, False, False)
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=authority, path_length=None), True),
        (x509.KeyUsage(*usage), True),
        (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
    ]
    if names:
        extensions.append((x509.SubjectAlternativeName([_general(entry) for entry in names]), False))
    first, last = now + timedelta(days=start), now + timedelta(days=end)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), first, last)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return Signed(builder.sign(signer, hashes.SHA256()), key)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@contextlib.contextmanager
def listening(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve connections one after another on a port of this machine, which is given."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(0.1)
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                connection, _ = server.accept()
            except TimeoutError:
                continue
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                handle(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        done.set()
        thread.join(timeout=10)
        server.close()


def tls(certificate: Path) -> Callable[[socket.socket], None]:
    """Return what a TLS server does with a connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))

    def handle(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)

    return handle
