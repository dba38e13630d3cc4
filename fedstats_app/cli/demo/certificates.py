"""Certificates and keys of a federation on this machine; docs/deployment.md makes them with openssl and ssh-keygen."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

_VALID = timedelta(days=365)
_AUTHORITY = "Federation"


def make_certificates(folder: Path) -> None:
    """Write an authority (ca.crt, ca.key) and the certificate of 127.0.0.1 that it signs (server.pem, server.key).

    Parameters
    ----------
    folder : Path
        Where to. Only the owner can read the keys.
    """
    authority_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # certificates and their lists
    authority = (
        _certificate(_AUTHORITY, authority_key.public_key(), authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
    )
    server = (
        _certificate("localhost", server_key.public_key(), authority_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    for name, builder, key in (("ca.crt", authority, authority_key), ("server.pem", server, server_key)):
        certificate = builder.sign(authority_key, hashes.SHA256())
        (folder / name).write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_private((folder / name).with_suffix(".key"), key, PrivateFormat.PKCS8)


def make_node_key(path: Path) -> Path:
    """Write a SuperNode's key, which only its owner may read, and its public half, whose path is returned."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(path, key, PrivateFormat.OpenSSH)
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def _certificate(
    subject: str, key: ec.EllipticCurvePublicKey, authority: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    subject_name, issuer_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, _AUTHORITY)
    )
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    now, number = datetime.now(UTC), x509.random_serial_number()
    return x509.CertificateBuilder(issuer_name, subject_name, key, number, now, now + _VALID).add_extension(
        signer, critical=False
    )


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))
