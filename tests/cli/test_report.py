"""`fedstats report` and `fedstats runs`: pages and lists of run folders."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedstats_app.cli import main
from fedstats_app.report.method_result import MethodResult
from fedstats_app.report.run_folder import RunFolder

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run_folder(tmp_path_factory: pytest.TempPathFactory, make_result: Callable[..., MethodResult]) -> Path:
    """A completed run with two methods, without the files that a page can do without."""
    run = RunFolder.create(str(tmp_path_factory.mktemp("runs")), 1)
    run.write_status("completed")
    results = [make_result("fedncm", 0.75), make_result("fed3r", 0.85, wire_bytes=40_000_000)]
    run.write_results({"methods": {result.method: result.to_json() for result in results}})
    return run.path


def test_a_page_is_made_again_and_its_path_printed(run_folder: Path, capsys: Capture) -> None:
    page = run_folder / "report.html"
    page.unlink(missing_ok=True)
    assert main(["report", str(run_folder)]) == 0 and capsys.readouterr().out == f"{page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_what_is_no_run_is_an_error_without_a_page(tmp_path: Path, capsys: Capture) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "is no run folder: it has no status.json" in capsys.readouterr().err and not list(tmp_path.glob("*.html"))


def test_runs_are_listed_and_damaged_ones_named(run_folder: Path, tmp_path: Path, capsys: Capture) -> None:
    for name in ("20260101T000000Z-1", "20260102T000000Z-2", "20260103T000000Z-3"):
        shutil.copytree(run_folder, tmp_path / name)
    (tmp_path / "no-run").mkdir()
    (tmp_path / "20260103T000000Z-3" / "results.json").write_text("{")
    assert main(["runs", str(tmp_path)]) == 1
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["20260103T000000Z-3", "20260102T000000Z-2", "20260101T000000Z-1"]
    assert "damaged" in lines[0] and "completed" in lines[1]
    (tmp_path / "20260103T000000Z-3" / "results.json").unlink()
    assert main(["runs", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    results = json.loads((run_folder / "results.json").read_text())["methods"]
    latest, *others = document["runs"]
    assert latest["methods"] == [] and latest["accuracy"] is None
    best = max(results, key=lambda name: results[name]["accuracy"])
    for one in others:
        assert one["best"] == best and one["accuracy"] == results[best]["accuracy"]
        assert one["wire_bytes"] == results[best]["wire_bytes"] and set(one["methods"]) == set(results)
