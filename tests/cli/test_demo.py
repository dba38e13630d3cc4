"""`fedstats demo`: what it refuses, and what it leaves when it fails. Real federations of it are in test_deployment."""

import math
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fedstats_app.cli import CommandError, main
from fedstats_app.cli.demo import Processes, run_folder


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("nowhere", "must have a folder per site, got none"),
        ("empty", "must have a folder per site, got none"),
        ("taken", "must not be called server"),
        ("quoted", 'must not be called a"b'),
        ("downloaded", "has splits of one data set: Testing, Training. A simulation divides it"),
    ],
)
def test_what_are_no_sites_is_refused(
    folder: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    downloaded = ("downloaded/Training/ant", "downloaded/Testing/ant")
    for path in ("empty", "taken/server/ant", 'quoted/a"b/ant', "deep/good/ant", "deep/stray", *downloaded):
        (tmp_path / path).mkdir(parents=True)
    assert main(["demo", "--images", str(tmp_path / folder), "--dir", str(tmp_path / "demo")]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert not (tmp_path / "demo").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--dir", str(tmp_path)]) == 2 and "--dir must not be there" in capsys.readouterr().err


WAITS = "import time; print('ready', flush=True); time.sleep(600)"


def test_what_was_started_is_ended_whatever_happens(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), closing(Processes(tmp_path, tmp_path, {})) as processes:
        processes.background("one", [sys.executable, "-c", WAITS])
        processes.wait_for("one", "ready")
        assert processes.runs("one")
        raise KeyboardInterrupt
    assert not processes.runs("one")


def test_a_command_that_ends_early_is_told_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedstats_app.cli.demo.PATIENCE", math.inf)
    with closing(Processes(tmp_path, tmp_path, {})) as processes:
        processes.background("one", [sys.executable, "-c", "print('the port is taken')"])
        with pytest.raises(CommandError, match='one did not say "up":\nthe port is taken'):
            processes.wait_for("one", "up")


def test_a_run_that_failed_is_told_by_its_last_line(tmp_path: Path) -> None:
    assert run_folder(str(tmp_path)) == str(tmp_path)
    why = "[fedstats] FAILED: " + "no node answered; " * 100
    with pytest.raises(CommandError, match=r"the run failed: .*no node answered"):
        run_folder(why)
