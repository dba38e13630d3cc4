"""Dates, signatures and addresses of certificates."""

from pathlib import Path

import pytest

from fedstats_app.cli.check.certificates import check_dates, check_pair, read_certificates
from tests.cli.certificates import sign

AUTHORITY = sign("Test CA")
NAMES = ("superlink.example.org", "*.nodes.example.org", "127.0.0.1", "::1")
SERVER = sign("superlink", by=AUTHORITY, names=NAMES)


@pytest.mark.parametrize(
    ("start", "end", "level", "words"),
    [
        (-1, 365, "ok", "valid from"),
        (-30, -1, "FAIL", "expired"),
        (2, 30, "FAIL", "not valid yet"),
        (-1, 10, "warning", "ends in 9 days"),
    ],
)
def test_dates(start: int, end: int, level: str, words: str) -> None:
    finding = check_dates("certificate", sign("superlink", start=start, end=end).certificate)
    assert (finding.check, finding.level) == ("certificate", level)
    assert words in finding.message and "CN=superlink" in finding.message
    assert bool(finding.advice) == (level != "ok")


@pytest.mark.parametrize(
    "address",
    ["superlink.example.org", "SUPERLINK.example.org", "a.nodes.example.org", "127.0.0.1", "::1", "0:0:0:0:0:0:0:1"],
)
def test_names_and_addresses_that_are_covered(address: str) -> None:
    levels = [finding.level for finding in check_pair(SERVER.certificate, [AUTHORITY.certificate], address)]
    assert levels == ["ok", "ok"]


@pytest.mark.parametrize(
    "address", ["example.org", "a.b.nodes.example.org", "nodes.example.org", "10.0.0.1", "superlink"]
)
def test_an_address_that_is_not_covered_fails(address: str) -> None:
    signature, covered = check_pair(SERVER.certificate, [AUTHORITY.certificate], address)
    assert (signature.level, covered.level) == ("ok", "FAIL")
    assert f"not for {address}" in covered.message and "*.nodes.example.org, 127.0.0.1" in covered.message
    assert f"subjectAltName={'IP' if address[0].isdigit() else 'DNS'}:{address}" in covered.advice


def test_a_common_name_is_no_address() -> None:
    bare = sign("superlink.example.org", by=AUTHORITY)
    _, covered = check_pair(bare.certificate, [AUTHORITY.certificate], "superlink.example.org")
    assert covered.level == "FAIL" and "for no name at all" in covered.message


def test_another_authority_of_the_same_name_did_not_sign() -> None:
    impostor, stranger = sign("Test CA"), sign("Other CA")
    for wrong in (impostor, stranger):
        (signature,) = check_pair(SERVER.certificate, [wrong.certificate], None)
        assert signature.level == "FAIL" and "names its issuer as CN=Test CA" in signature.message
    (signature,) = check_pair(SERVER.certificate, [impostor.certificate, AUTHORITY.certificate], None)
    assert signature.level == "ok"


def test_files_with_several_and_with_none(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(AUTHORITY.write(tmp_path, "ca").read_bytes() + SERVER.write(tmp_path, "server").read_bytes())
    assert read_certificates(str(both)) == [AUTHORITY.certificate, SERVER.certificate]
    none = tmp_path / "none.pem"
    none.write_text("no certificate")
    with pytest.raises(ValueError, match=r"none\.pem holds no certificate in PEM form"):
        read_certificates(str(none))
