"""Dates of certificates, and reaching a SuperLink: over TLS or not, with the right certificate or not, in bounds."""

import socket
import threading
from pathlib import Path

import pytest

from fedstats_app.cli.arguments import parser
from fedstats_app.cli.check.superlink import check_certificates, check_dates, check_superlink, control_api_answers
from fedstats_app.cli.terminal import Finding
from tests.cli.certificates import listening, sign, tls

AUTHORITY = sign("Test CA")
SERVER = sign("superlink", by=AUTHORITY, names=["superlink.example.org", "127.0.0.1"])


@pytest.mark.parametrize(
    ("start", "end", "level", "words"),
    [
        (-1, 365, "ok", "valid from"),
        (-30, -1, "FAIL", "not valid now"),
        (2, 30, "FAIL", "not valid now"),
        (-1, 10, "warning", "ends in 9 days"),
    ],
)
def test_dates(start: int, end: int, level: str, words: str) -> None:
    finding = check_dates("certificate", sign("superlink", start=start, end=end).certificate)
    assert (finding.check, finding.level) == ("certificate", level)
    assert words in finding.message and "CN=superlink" in finding.message
    assert bool(finding.advice) == (level != "ok")


def test_files_of_root_certificates(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(AUTHORITY.write(tmp_path, "ca").read_bytes() + SERVER.write(tmp_path, "server").read_bytes())
    assert [finding.level for finding in check_certificates(str(both))] == ["ok", "ok"]
    both.write_text("no certificate")
    (found,) = check_certificates(str(both))
    assert found.level == "FAIL" and "both.pem cannot be read" in found.message


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        *[("a.example.org:8000", ("a.example.org", 8000)), ("[::1]:42", ("::1", 42))],
        *[(wrong, None) for wrong in ("", "host", ":80", "host:0", "host:65536", "::1:80", "https://host:80")],
    ],
)
def test_addresses(address: str, parsed: tuple[str, int] | None, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "--superlink", address]
    if parsed is None:
        with pytest.raises(SystemExit):
            parser().parse_args(words)
        assert "must be HOST:PORT" in capsys.readouterr().err
    else:
        assert parser().parse_args(words).superlink == parsed


def refuse(connection: socket.socket) -> None:
    """Answer as an HTTP server without TLS answers what it does not understand."""
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def check(port: int, root: Path | None = None, timeout: float = 5.0) -> dict[str, Finding]:
    return {one.check: one for one in check_superlink(("127.0.0.1", port), str(root or ""), timeout)}


def test_a_certificate_that_fits_is_accepted(tmp_path: Path) -> None:
    with listening(tls(SERVER.write(tmp_path, "server"))) as port:
        found = check(port, AUTHORITY.write(tmp_path, "ca"))
        (without_root,) = check(port).values()
    assert {name: finding.level for name, finding in found.items()} == {"certificate": "ok", "SuperLink": "ok"}
    assert "over TLSv1.3" in found["SuperLink"].message
    assert without_root.level == "FAIL" and "speaks TLS" in without_root.message
    assert "--root-certificates" in without_root.advice


@pytest.mark.parametrize(
    ("wrong", "reason"), [("signer", "issuer"), ("address", "IP address mismatch"), ("date", "has expired")]
)
def test_a_certificate_that_does_not_fit_is_refused_with_the_reason(tmp_path: Path, wrong: str, reason: str) -> None:
    server = sign(
        "superlink",
        by=sign("Other CA") if wrong == "signer" else AUTHORITY,
        names=["10.0.0.1" if wrong == "address" else "127.0.0.1"],
        start=-9,
        end=-1 if wrong == "date" else 99,
    )
    with listening(tls(server.write(tmp_path, "server"))) as port:
        (found,) = check(port, AUTHORITY.write(tmp_path, "ca")).values()
    assert (found.check, found.level) == ("SuperLink", "FAIL")
    assert "the TLS connection is refused: " in found.message and reason in found.message


def test_without_tls_it_fails_if_there_should_be_some_and_is_a_warning_otherwise(tmp_path: Path) -> None:
    with listening(refuse) as port:
        (wanted,) = check(port, AUTHORITY.write(tmp_path, "ca")).values()
        (unwanted,) = check(port).values()
    assert wanted.level == "FAIL" and "not over TLS" in wanted.message
    assert unwanted.level == "warning" and "without TLS" in unwanted.message


def test_nobody_there_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    (finding,) = check(port).values()
    assert finding.level == "FAIL" and "does not answer" in finding.message and "refused" in finding.message


def test_a_server_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    checked, in_time = threading.Event(), list[bool]()
    with listening(lambda connection: in_time.append(checked.wait(8))) as port:
        (finding,) = check(port, AUTHORITY.write(tmp_path, "ca"), timeout=0.3).values()
        checked.set()
    assert finding.level == "FAIL" and in_time and all(in_time)


@pytest.mark.parametrize(
    ("answer", "open_to_strangers"),
    [
        (b"HTTP/1.1 422 Unprocessable Entity\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", False),
        (b"", False),
        (b"SSH-2.0", False),
    ],
)
def test_whether_commands_are_taken(answer: bytes, open_to_strangers: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        assert control_api_answers(ours) == open_to_strangers and theirs.recv(200).startswith(b"POST /v1/control/")
