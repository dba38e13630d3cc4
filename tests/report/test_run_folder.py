import json
import os
import re
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from fedstats_app.base.lock import lock_folder
from fedstats_app.base.runs import run_named
from fedstats_app.report import run_folder
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.run_record import RunRecord

_NOW = datetime(2026, 3, 1, 23, 5, 9, tzinfo=UTC)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """A clock that stands still at the last of these."""
    times = [_NOW]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return times[-1].astimezone(tz)

    monkeypatch.setattr(run_folder, "datetime", Clock)
    return times


def _json(path: Path) -> object:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = path.read_text(encoding="utf-8")
    assert text.endswith("}\n")
    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(str(tmp_path / "runs"), 17)


def test_the_folder_is_named_by_utc_time(tmp_path: Path) -> None:
    run = RunFolder.create(str(tmp_path / "a" / "b"), 9876543210987654321)
    assert run.path == tmp_path / "a" / "b" / "20260301-230509" and run.path.is_dir()
    assert RunFolder.create(str(tmp_path / "a" / "b"), 17).path.name == "20260301-230509-2"


def test_a_relative_output_dir_is_refused() -> None:
    output_dir = "./runs"
    with pytest.raises(ValueError, match=f"absolute path or start with ~, got '{re.escape(output_dir)}'"):
        RunFolder.create(output_dir, 1)


def test_latest_is_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[datetime]) -> None:
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", str(tmp_path))
    root = tmp_path / "fedstats-runs"
    with pytest.raises(FileNotFoundError, match=f"latest: no run in {re.escape(str(root))}"):
        run_named("latest")
    runs = []
    for days in (1, 0, 2):
        clock.append(_NOW + timedelta(days=days))
        runs.append(RunFolder.create("", 17))
    for run in runs[:2]:  # the third has no status yet
        run.write_status("completed")
    for name in ("latest", f"{root}/latest", "~/fedstats-runs/latest"):
        assert Path(run_named(name)) == runs[0].path == RunFolder.reopen(name, 18).path
    assert Path(run_named(runs[0].path.name)) == runs[0].path  # as `fedstats runs` prints it
    assert run_named("~/fedstats-runs") == "~/fedstats-runs" and run_named("elsewhere/x") == "elsewhere/x"
    (root / "latest").mkdir()
    assert run_named(f"{root}/latest") == f"{root}/latest"  # it has that name


def test_a_run_whose_process_was_killed_is_not_running(folder: RunFolder) -> None:
    folder.write_status("running")
    with lock_folder(folder.path):
        assert RunRecord.read(folder.path).status["state"] == "running"
    killed = RunRecord.read(folder.path).status
    assert (killed["state"], killed["reason"]) == ("stopped", "its process was killed")


def test_status_tells_where_the_run_stands(folder: RunFolder, clock: list[datetime]) -> None:
    folder.write_status("running")
    running = {"state": "running", "reason": "", "run_id": "17", "started": "2026-03-01T23:05:09Z", "ended": None}
    assert _json(folder.path / "status.json") == running
    clock.append(_NOW + timedelta(minutes=2))
    folder.write_status("failed", "2 of 10 clients answered, min-clients is 5")
    failed = _json(folder.path / "status.json")
    assert isinstance(failed, dict)
    assert (failed["state"], failed["reason"]) == ("failed", "2 of 10 clients answered, min-clients is 5")
    assert (failed["started"], failed["ended"]) == ("2026-03-01T23:05:09Z", "2026-03-01T23:07:09Z")
