"""Whose SuperLink has the port that `flwr run` would take."""

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from fedstats_app.cli.check.local_superlink import check_local_superlink, listener_owner


class Healthy(http.server.BaseHTTPRequestHandler):
    """Answers as a SuperLink does when it is asked how it is."""

    def do_GET(self) -> None:
        self.send_response(HTTPStatus.OK if self.path == "/health" else HTTPStatus.NOT_FOUND)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def superlink() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def ports(unused_ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(unused_ports[0]))
    return unused_ports


def test_a_free_port_is_fine(ports: tuple[int, int]) -> None:
    found = check_local_superlink()
    assert found.level == "ok" and f"port {ports[0]} is free" in found.message


needs_proc = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc/net/tcp")


@needs_proc
def test_one_s_own_superlink_is_fine_and_its_surprise_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with superlink() as port:
        monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(port))
        assert listener_owner(port) == os.getuid()
        found = check_local_superlink()
    assert found.level == "ok" and "your own local SuperLink" in found.message


@needs_proc
def test_somebody_else_s_superlink_would_take_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with superlink() as port:
        monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(port))
        found = check_local_superlink()
    assert found.level == "FAIL"
    assert (
        f"port {port}" in found.message
        and "belongs to another user" in found.message
        and "would run there" in found.message
    )
    assert "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT" in found.advice


def test_what_is_no_superlink_has_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(other.getsockname()[1]))
        found = check_local_superlink(timeout=0.3)
    assert found.level == "FAIL" and "no SuperLink" in found.message


def test_a_port_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "eighty")
    found = check_local_superlink()
    assert found.level == "FAIL" and "must be a port from 1 to 65535, got 'eighty'" in found.message
