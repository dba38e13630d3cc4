"""The app that does nothing sends as many messages, and as large ones, as it is told to."""

from __future__ import annotations

import importlib
import json
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict

from fedstats_app.grid.asking import array_bytes
from fedstats_app.testing import LocalGrid
from research.benchmarks.rounds import SAID
from research.benchmarks.scale import PEER


def test_it_sends_what_it_is_told_to(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(PEER))
    client, server = (importlib.import_module(f"do_nothing.{name}_app") for name in ("client", "server"))
    defaults = tomllib.loads((Path(PEER) / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = {
        **defaults,
        "num-clients": 23,
        "kilobytes": 4.0,
        "rounds": 2,
        "messages-at-a-time": 2,
        "request-kilobytes": 8.0,
    }
    sizes: list[int] = []
    asked: list[int] = []

    def app(msg: Message, context: Context) -> Message:
        reply = client.app(msg, context)
        sizes.append(array_bytes(reply.content))
        asked.append(array_bytes(msg.content))
        return reply  # type: ignore[no-any-return]

    server.app(LocalGrid(app, [{}, {}], settings), Context(1, 1, {}, RecordDict(), settings))

    headers = 128 * settings["arrays"]
    assert sizes == [0, 0] + 2 * [10 * (4000 + headers), 10 * (4000 + headers), 3 * (4000 + headers)]
    assert asked == [0, 0] + 6 * [8000 + 128]
    said = capsys.readouterr().out
    assert "3 messages a round" in said
    line = next(line for line in said.splitlines() if line.startswith(SAID))
    assert len(json.loads(line.removeprefix(SAID))) == 2
