"""A hub that is not there, that has no such model, or that asks for its terms to be accepted first."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from fedstats_app.backbones import hub
from fedstats_app.backbones.hub import hub_folder
from fedstats_app.backbones.weights import WeightsError
from tests.support.hub_cache import HubCache


@pytest.fixture
def refusing_hub(hub_cache: HubCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine that answers every question with the error code in the list."""
    code = ["GatedRepo"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("X-Error-Code", code[0])
            self.send_header("X-Error-Message", code[0])
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """Keep the test's output clean."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield code
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_gate_is_one_message_with_what_to_do(refusing_hub: list[str]) -> None:
    with pytest.raises(WeightsError) as caught:
        hub_folder("MahmoodLab/UNI")
    message = str(caught.value)
    assert "terms must be accepted at https://huggingface.co/MahmoodLab/UNI, then sign in by `hf auth login`" in message
    assert "hf download MahmoodLab/UNI" in message and "backbone-weights" in message
    assert "\n" not in message and "127.0.0.1" not in message


def test_a_name_that_nobody_has(refusing_hub: list[str]) -> None:
    refusing_hub[0] = "RepoNotFound"
    with pytest.raises(WeightsError, match="has no such model, or it is private"):
        hub_folder("nobody/nothing")


def test_what_is_half_in_the_cache_is_not_taken(hub_cache: HubCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "require_reachable", lambda url: pytest.fail("offline means no network"))
    folder = hub_cache.folder("org/name")
    (folder / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match="org/name is not on this machine and HF_HUB_OFFLINE forbids downloads"):
        hub_folder("org/name")
    (folder / "model.safetensors").touch()
    assert hub_folder("org/name") == folder
