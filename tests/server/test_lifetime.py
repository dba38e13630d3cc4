"""What a run leaves and says when the disk fails under it."""

import errno
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Message

from fedstats_app import client_app
from fedstats_app.base.lock import FolderInUseError, lock_folder
from fedstats_app.report.run_folder import STATUS_BYTES, RunFolder
from tests.support.flower import as_flower_ends
from tests.support.simulation import read_json, simulate


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk on which every new file fails with ENOSPC while it is full."""
    disk, real = SimpleNamespace(full=False), os.open

    def opened(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if disk.full and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", opened)
    return disk


def full_at(disk: SimpleNamespace, message_type: str) -> Any:
    def app(msg: Message, context: Context) -> Message:
        disk.full |= msg.metadata.message_type == message_type
        return client_app.app(msg, context)

    return app


def test_a_full_disk_is_in_status_and_last_line(
    tmp_path: Path, disk: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        simulate(tmp_path, method="fedncm", app=full_at(disk, "query.statistics"))
    (folder,) = (tmp_path / "runs").iterdir()
    status = read_json(folder, "status.json")
    assert status["state"] == "failed" and "No space left on device" in status["reason"] and status["ended"]
    assert caught.value.errno == errno.ENOSPC
    assert "FAILED: OSError: [Errno 28] No space left on device: '/" in capsys.readouterr().out.strip().splitlines()[-1]


@pytest.mark.parametrize("reason", ["ä" * 5000, "\x00" * 5000, "\ud800"])
def test_a_status_of_any_reason_fits_where_the_one_before_it_was(
    tmp_path: Path, disk: SimpleNamespace, reason: str
) -> None:
    folder = RunFolder.create(str(tmp_path), 1)
    folder.write_status("running")
    disk.full = True
    folder.write_status("failed", reason)
    content = (folder.path / "status.json").read_bytes()
    assert len(content) <= STATUS_BYTES and b"  \n" not in content
    status = json.loads(content)
    assert status["state"] == "failed" and status["reason"][:5] == reason.encode("utf-8", "replace").decode()[:5]


@pytest.mark.skipif(os.name == "nt", reason="flock")
def test_a_folder_in_use_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulate(tmp_path, method="fedncm")
    before = (folder / "status.json").read_bytes()
    with lock_folder(folder), pytest.raises(FolderInUseError):
        simulate(tmp_path, method="fedncm", resume=str(folder))
    assert (folder / "status.json").read_bytes() == before
    assert "FAILED: FolderInUseError" in capsys.readouterr().out.strip().splitlines()[-1]
    simulate(tmp_path, method="fedncm", resume=str(folder))


def test_a_failure_s_sentence_ends_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="nothing is at /nowhere") as caught:
        simulate(tmp_path, method="fedncm", dataset="folder:/nowhere")
    capsys.readouterr()
    as_flower_ends(caught.value)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out == "[fedstats] FAILED: DatasetError: folder:/nowhere: nothing is at /nowhere\n"
    (file,) = tmp_path.glob("runs/*/traceback.txt")
    assert re.match(r"Traceback \(most recent call last\):\n[\s\S]*in existing_path", file.read_text())


def test_the_end_of_a_run_is_not_that_of_one_before_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError):
        simulate(tmp_path / "first", method="fedncm", dataset="folder:/nowhere")
    folder = simulate(tmp_path / "second", method="fedncm")
    capsys.readouterr()
    as_flower_ends(None)
    assert capsys.readouterr().out == f"{folder}\n"
