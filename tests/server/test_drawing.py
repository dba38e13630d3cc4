"""Plots that are drawn beside the run: all are there in the end, errors are the run's, the table comes first."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.report.plots import first_stage
from fedstats_app.server import closed_form
from fedstats_app.server.pictures import drawing
from tests.support.simulation import read_json, simulate


def test_plots_are_drawn_one_after_another_beside_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Path, Any]] = []
    threads = set()

    def draw(folder: Path, what: str) -> None:
        threads.add(threading.get_ident())
        drawn.append((folder, what))

    monkeypatch.setattr(first_stage, "write_plots", draw)
    with drawing(tmp_path) as plots:
        plots.plots("one")
        plots.plots("other")
        plots.finish()
        assert drawn == [(tmp_path, "one"), (tmp_path, "other")]
    assert len(threads) == 1 and threads != {threading.get_ident()}


def test_without_a_folder_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_stage, "write_plots", lambda *_: pytest.fail("drawn"))
    with drawing(None) as plots:
        plots.plots("one")
        plots.finish()


def test_what_a_plot_fails_with_is_what_the_run_fails_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(*_: Any, **__: Any) -> None:
        raise OSError("no space for plots")

    monkeypatch.setattr(first_stage, "write_plots", draw)
    with pytest.raises(OSError, match="no space for plots"):
        simulate(tmp_path, method="fedncm", plots=True)
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_json(folder, "status.json")["reason"] == "OSError: no space for plots"


def test_the_table_is_printed_before_clients_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, measure = [], closed_form.measured_clients

    def measured(*args: Any) -> Any:
        printed.append(capsys.readouterr().out)
        return measure(*args)

    monkeypatch.setattr(closed_form, "measured_clients", measured)
    simulate(tmp_path, method="fedncm")
    assert "FedNCM" in printed[0] and "done after" not in printed[0]
    assert "done after" in capsys.readouterr().out
