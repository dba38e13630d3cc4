"""Whether certificates are valid, belong together and are for the address in use."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from fedstats_app.cli.check.finding import Finding

WARN_BEFORE_END = timedelta(days=30)


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


def check_dates(what: str, certificate: x509.Certificate, now: datetime | None = None) -> Finding:
    """Check that a certificate is valid now and for some time."""
    now = datetime.now(UTC) if now is None else now
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    period = f"{_subject(certificate)}, valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}"
    if now > end:
        return Finding(what, "FAIL", f"{period}: expired", "make a new certificate")
    if now < start:
        return Finding(what, "FAIL", f"{period}: not valid yet", "is this machine's clock right?")
    if now + WARN_BEFORE_END > end:
        return Finding(what, "warning", f"{period}: ends in {(end - now).days} days", "make a new certificate soon")
    return Finding(what, "ok", period)


def check_pair(
    certificate: x509.Certificate, authorities: list[x509.Certificate], address: str | None
) -> Iterator[Finding]:
    """Check that a server's certificate is signed by one of the authorities, and covers an address.

    Parameters
    ----------
    certificate : Certificate
        The SuperLink's.
    authorities : list of Certificate
        Of the file that SuperNodes are given as root certificates.
    address : str or None
        The host, a name or an IP address, by which SuperNodes reach it; None to check no address.
    """
    if any(_signed_by(certificate, authority) for authority in authorities):
        yield Finding("signature", "ok", f"{_subject(certificate)} is signed by the root certificate")
    else:
        issuer = certificate.issuer.rfc4514_string()
        message = f"{_subject(certificate)} is not signed by the root certificate; it names its issuer as {issuer}"
        yield Finding("signature", "FAIL", message, "give the certificate of the authority that signed the SuperLink's")
    if address is None:
        return
    names = covered_names(certificate)
    if any(_covers(name, address) for name in names):
        yield Finding("address", "ok", f"the certificate is for {address}")
    else:
        message = f"the certificate is for {', '.join(names) or 'no name at all'}, not for {address}"
        kind = "IP" if _is_ip(address) else "DNS"
        advice = f"sign it anew with subjectAltName={kind}:{address}, or use a name that it is for"
        yield Finding("address", "FAIL", message, advice)


def covered_names(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses of the subject alternative name; the common name counts for nothing today."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _covers(name: str, address: str) -> bool:
    if _is_ip(address):
        return _is_ip(name) and ipaddress.ip_address(name) == ipaddress.ip_address(address)
    if name.startswith("*."):
        # A star stands for the first label and for no more.
        _, _, domain = address.lower().partition(".")
        return domain == name[2:].lower()
    return name.lower() == address.lower()


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string() or "a certificate without a subject"
