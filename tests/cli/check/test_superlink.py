"""Reaching a SuperLink: over TLS or not, with the right certificate or not, and never waiting for long."""

import json
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fedstats_app.cli.check import superlink
from fedstats_app.cli.check.certificates import read_certificates
from fedstats_app.cli.check.finding import Finding
from fedstats_app.cli.check.superlink import check_superlink, check_supernodes, parse_address, supernodes_finding
from tests.cli.certificates import listening, sign, tls

AUTHORITY = sign("Test CA")


def refuse(connection: socket.socket) -> None:
    """Answer as an HTTP server without TLS answers what it does not understand."""
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def check(port: int, root: Path | None = None, timeout: float = 5.0) -> dict[str, Finding]:
    authorities = read_certificates(str(root)) if root else []
    findings = check_superlink(f"127.0.0.1:{port}", str(root or ""), authorities, timeout)
    return {finding.check: finding for finding in findings}


def test_a_certificate_that_fits_is_accepted(tmp_path: Path) -> None:
    server = sign("superlink", by=AUTHORITY, names=["127.0.0.1"]).write(tmp_path, "server")
    with listening(tls(server)) as port:
        found = check(port, AUTHORITY.write(tmp_path, "ca"))
    levels = {name: finding.level for name, finding in found.items()}
    assert levels == dict.fromkeys(("certificate", "signature", "address", "SuperLink"), "ok")
    assert "over TLSv1.3" in found["SuperLink"].message


@pytest.mark.parametrize(
    ("wrong", "failed"), [("signer", "signature"), ("address", "address"), ("date", "certificate")]
)
def test_a_certificate_that_does_not_fit_is_refused_with_the_reason(tmp_path: Path, wrong: str, failed: str) -> None:
    server = sign(
        "superlink",
        by=sign("Other CA") if wrong == "signer" else AUTHORITY,
        names=["10.0.0.1" if wrong == "address" else "127.0.0.1"],
        start=-9,
        end=-1 if wrong == "date" else 99,
    )
    with listening(tls(server.write(tmp_path, "server"))) as port:
        found = check(port, AUTHORITY.write(tmp_path, "ca"))
    assert {name for name, finding in found.items() if finding.level == "FAIL"} == {failed, "SuperLink"}
    assert "the TLS connection is refused" in found["SuperLink"].message


def test_tls_without_root_certificates_fails(tmp_path: Path) -> None:
    server = sign("superlink", by=AUTHORITY, names=["127.0.0.1"]).write(tmp_path, "server")
    with listening(tls(server)) as port:
        (finding,) = check(port).values()
    assert finding.level == "FAIL" and "speaks TLS" in finding.message and "--root-certificates" in finding.advice


def test_root_certificates_without_tls_fail(tmp_path: Path) -> None:
    with listening(refuse) as port:
        (finding,) = check(port, AUTHORITY.write(tmp_path, "ca")).values()
    assert finding.level == "FAIL" and "not over TLS" in finding.message


def test_no_tls_at_all_is_a_warning() -> None:
    with listening(refuse) as port:
        (finding,) = check(port).values()
    assert finding.level == "warning" and "without TLS" in finding.message


def test_nobody_there_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (finding,) = check(port).values()
    assert finding.level == "FAIL" and "does not answer" in finding.message and "refused" in finding.message


def test_a_server_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    silence = threading.Event()
    with listening(lambda connection: bool(silence.wait(8)) or None) as port:
        started = time.monotonic()
        (finding,) = check(port, AUTHORITY.write(tmp_path, "ca"), timeout=0.3).values()
        seconds = time.monotonic() - started
        silence.set()
    assert finding.level == "FAIL" and seconds < 3


def test_a_name_that_takes_for_ever_to_find_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: never.wait(30))
    started = time.monotonic()
    (finding,) = check_superlink("superlink.example.org:8000", "", [], 0.2)
    never.set()
    assert finding.level == "FAIL" and "was not found within 0.2 s" in finding.message
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    ("address", "parsed"),
    [("a.example.org:8000", "a.example.org 8000"), ("[::1]:42", "::1 42"), ("10.0.0.1:65535", "10.0.0.1 65535")],
)
def test_addresses(address: str, parsed: str) -> None:
    host, port = parsed.split()
    assert parse_address(address) == (host, int(port))


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":80", "host:0", "host:65536", "::1:80", "https://host:80", "h:²"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        parse_address(address)


def nodes(*states: str) -> str:
    return json.dumps({"success": True, "nodes": [{"node-id": str(i), "status": s} for i, s in enumerate(states)]})


@pytest.mark.parametrize(
    ("output", "level", "message"),
    [
        (nodes("online", "offline", "online"), "ok", "1 offline, 2 online"),
        (nodes("offline"), "warning", "1 offline, so a run would wait"),
        (nodes(), "warning", "none, so a run"),
        ("", "FAIL", "it said: no such connection"),
        ('{"success": false, "error-message": "\\nrefused"}', "FAIL", "it said: refused"),
        ('{"nodes": 3}', "FAIL", "gave no list"),
    ],
)
def test_what_flower_lists(output: str, level: str, message: str) -> None:
    finding = supernodes_finding("hospital", output, "no such connection")
    assert finding.level == level and message in finding.message


def test_flowers_command_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **_: object) -> None:
        assert command[1:] == ["supernode", "list", "hospital", "--format", "json"]
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(superlink.subprocess, "run", hang)
    finding = check_supernodes("hospital")
    assert finding.level == "FAIL" and "did not answer within 30 s" in finding.message


def test_flowers_simulation_has_no_supernodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink.subprocess, "run", lambda *_, **__: pytest.fail("it would start a SuperLink"))
    assert check_supernodes("local").level == "FAIL"
