"""Versions that are supported, and whose SuperLink has the port that `flwr run` would take."""

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import pytest

from fedstats_app.cli.check import machine
from fedstats_app.cli.check.machine import (
    PORT_VARIABLE,
    check_local_superlink,
    check_proxy,
    check_versions,
    listener_owner,
)
from tests.support.flower import free_ports


def test_versions_that_are_missing_or_too_old_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = check_versions(simulation=False)
    assert found.level == "ok" and "torch " in found.message
    installed = {"torch": "2.5.1+cpu", "flwr": "", "ray": "", "numpy": "2.10.0", "matplotlib": ""}
    monkeypatch.setattr(machine, "installed_version", lambda name: installed.get(name, "0.99"))
    monkeypatch.setattr(machine.platform, "python_version", lambda: "3.10.4")
    versions, simulation = check_versions(simulation=True)
    assert versions.level == "FAIL" and "Python 3.10.4 (needed: <3.14,>=3.11)" in versions.message
    assert "torch 2.5.1+cpu (needed: >=2.6)" in versions.message and "numpy" not in versions.message
    assert "flwr is not installed (needed: <2,>=1.41.0)" in versions.message
    assert simulation.level == "warning" and "ray is not installed" in simulation.message
    (node,) = check_versions(simulation=False)
    assert "matplotlib" not in node.message


@pytest.mark.parametrize(
    ("host", "no_proxy", "level"),
    [
        ("127.0.0.1", "", "FAIL"),
        ("127.0.0.1", "localhost,127.0.0.1", "ok"),
        ("server.example", "127.0.0.1", "warning"),
        ("server.example", "127.0.0.1,.example", "ok"),
    ],
)
def test_a_proxy_on_the_way_is_named(host: str, no_proxy: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    assert not [*check_proxy(host)]
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    (found,) = check_proxy(host)
    assert found.level == level and host in found.message and "secret" not in str(found)
    if found.advice:
        monkeypatch.setenv("NO_PROXY", found.advice.removeprefix("export NO_PROXY="))
        assert [found.level for found in check_proxy(host)] == ["ok"]


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


def test_a_free_port_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    [port] = free_ports(1)
    monkeypatch.setenv(PORT_VARIABLE, str(port))
    found = check_local_superlink()
    assert found.level == "ok" and f"port {port} is free" in found.message


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc/net/tcp")
def test_one_s_own_superlink_is_fine_and_another_user_s_would_take_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with superlink() as port:
        monkeypatch.setenv(PORT_VARIABLE, str(port))
        assert listener_owner(port) == os.getuid()
        own = check_local_superlink()
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        other = check_local_superlink()
        monkeypatch.setattr(machine, "listener_owner", lambda _: None)
        unknown = check_local_superlink()
    assert own.level == "ok" and "your own local SuperLink" in own.message
    assert other.level == "FAIL" and PORT_VARIABLE in other.advice
    assert f"port {port} belongs to another user" in other.message and "would be theirs" in other.message
    assert unknown.level == "warning" and "whose it is cannot be seen" in unknown.message


def test_what_is_no_superlink_has_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv(PORT_VARIABLE, str(other.getsockname()[1]))
        found = check_local_superlink(timeout=0.3)
    assert found.level == "FAIL" and "other than a SuperLink" in found.message
