"""A damaged file of a FedMeZO training: an error on the server, made up for on a node."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch

from fedstats_app.fedmezo.log import NodeFiles, TrainingFiles, Update
from tests.support.damage import flipped

UPDATES = [Update(5, (0.25,)), Update(2**63 - 1, (-1e-300,)), Update(0, (0.0,))]


def test_one_flipped_bit_anywhere_in_the_log_is_an_error_that_names_it(tmp_path: Path) -> None:
    files = TrainingFiles(tmp_path)
    files.replace_log(UPDATES)
    path = tmp_path / "log.bin"
    assert files.load_log(1) == UPDATES
    for damaged in flipped(path.read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(f"{path} is damaged")):
            files.load_log(1)


def test_a_node_makes_up_for_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = NodeFiles(tmp_path)
    files.save_start({"a": 1}, {"weight": torch.ones(2)})
    files.replace_log(UPDATES)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    with caplog.at_level(logging.WARNING, logger="fedstats_app"):
        assert files.load_start() is None and files.load_log(1) == [] and files.load_replica() is None
    assert "start.safetensors" in caplog.text and "log.bin" in caplog.text
    files.extend_log(UPDATES[:2], 1)
    assert files.load_log(1) == UPDATES[:2]


def test_clients_in_one_process_do_not_read_the_log_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, other = NodeFiles(tmp_path), NodeFiles(tmp_path)
    read: list[int] = []
    load = NodeFiles.load_log
    monkeypatch.setattr(NodeFiles, "load_log", lambda self, number: read.append(number) or load(self, number))  # type: ignore[func-returns-value]
    for _ in range(10):
        files.extend_log(UPDATES[:1], 1)
    assert len(read) == 1
    other.extend_log(UPDATES[1:2], 2)  # another process goes on
    files.extend_log(UPDATES[2:3], 3)
    assert files.load_log(1) == UPDATES[:3]
