"""A run writes its report last, and is not worse for one that cannot be made."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from fedstats_app.report import page
from fedstats_app.report.plots import first_stage
from tests.support.simulation import simulate, site_folder

SETTINGS: dict[str, Any] = {"method": "fedncm", "num_clients": 3, "min_clients": 1, "plots": True}
Capture = pytest.CaptureFixture[str]


def state(folder: Path) -> str:
    status: dict[str, str] = json.loads((folder / "status.json").read_text())
    return status["state"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device")])
def test_a_failing_report_is_named(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(page, "report", fail)
    folder = simulate(tmp_path, **SETTINGS)
    said = [line for line in capsys.readouterr().out.splitlines() if str(error) in line]
    assert len(said) == 1 and "no report" in said[0] and "fedstats report makes it again" in said[0]
    assert state(folder) == "completed" and (folder / "heads" / "fedncm.safetensors").is_file()
    assert not (folder / "report.html").exists()


def test_titles_of_plots_name_no_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr(first_stage, "set_title", lambda axes, title, *_, **__: titles.append(title))
    monkeypatch.setattr(Figure, "suptitle", lambda figure, title, **_: titles.append(title))
    data = tmp_path / "private" / "flowers"
    for part in ("train", "test"):
        site_folder(data / part, ("rose", "tulip"), seed=1)
    simulate(tmp_path, **SETTINGS, dataset=f"folder:{data}", partitioner="iid", fine_tune="probe", num_server_rounds=1)
    assert len(titles) == 3 and all("folder:flowers" in title and "private" not in title for title in titles)
