"""From runs to the table: each run once, ours beside published, and why they may differ."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.base.option import flattened
from fedstats_app.report.run_folder import RunFolder
from research.reproduce.catalogue import Catalogue, DataSet, Deviation, Published
from research.reproduce.plan import cells_of, planned
from research.reproduce.preset import Column, Preset, Row, preset_of_run_config, with_sweep
from research.reproduce.report import Report, reproduce
from research.reproduce.running import RunFailedError
from tests.support.trainings import make_training, write_run

CATALOGUE = Catalogue(
    data={"made": DataSet("Made-10", {"dataset": "builtin"}, "nothing", train=200)},
    deviations={
        "flips": Deviation("images were mirrored.", ("accuracy",)),
        "truncated": Deviation("bytes were cut off."),
    },
)
PRESET = Preset(
    name="table-0",
    title="Made",
    source="Nobody 2025, table 0",
    measures=("accuracy", "uplink_bytes"),
    seeds=(0, 1),
    notes="",
    keys={"num-clients": 3},
    deviations=("flips",),
    rows=(
        Row(
            "first",
            "made",
            {"dataset": "builtin"},
            published={
                "accuracy": {"NCM": Published(50.0, 0.3), "other": Published(70.0)},
                "uplink_bytes": {"NCM": Published(2.0)},
            },
            deviations={"uplink_bytes.NCM": ("truncated",)},
        ),
        Row("second", "made", {"dataset": "builtin", "dirichlet-alpha": 0.5}),
    ),
    columns=(Column("NCM", {"method": "fedncm"}, entry="fedncm"), Column("other", {}, quoted="it is secret.")),
)


class Runs:
    """Stands for `simulate`: leaves a made run folder, and remembers what it was asked."""

    def __init__(self, fail_at: int = -1) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.fail_at = fail_at

    def __call__(self, settings: Mapping[str, Any]) -> Path:
        self.asked.append(settings)
        if settings["seed"] == self.fail_at:
            RunFolder.create(settings["output-dir"], 1).write_status("failed", "no disk")
            raise OSError("no disk")
        accuracy = 0.4 + settings["seed"] / 50
        entry = {"accuracy": accuracy, "uplink_bytes": 1_500_000, "num_examples": 100}
        trained = [make_training("random", [0.1, accuracy])] if "fine-tune" in settings else []
        return write_run(Path(settings["output-dir"]), trained, {"fedncm": entry})


def made(simulate: Runs, folder: Path, preset: Preset = PRESET, rows: int = 1, **given: Any) -> Report:
    given = {key.replace("_", "-"): value for key, value in flattened(given).items()}
    runs = planned(cells_of(preset, preset.rows[:rows], preset.columns, preset.seeds, given))
    return reproduce(preset, runs, CATALOGUE, given=given, folder=folder, simulate=simulate, say=lambda line: None)


def test_the_table_has_ours_published_difference_and_reasons(tmp_path: Path) -> None:
    report = made(Runs(), tmp_path)
    assert report.text == (tmp_path / "table.md").read_text()
    for line in (
        "# Made\n\nNobody 2025, table 0.\n",
        "## Accuracy (%)\n",
        "| first | NCM | 41.00 ± 1.41 | 50 ± 0.3 | -9.00 | `flips`, `1` |\n",
        "| first | other | not run | 70 |  |  |\n",
        "## Sent by all clients, by the paper's formula (MB)\n",
        "| first | NCM | 1.50 ± 0.00 | 2 | -0.50 | `truncated`, `1` |\n",
        "- `flips`: images were mirrored.\n- `truncated`: bytes were cut off.\n",
        "- `1`: stand-in data: 100 training samples in place of 200\n",
        "- other is quoted, not run: it is secret.\n",
    ):
        assert line in report.text
    assert "second" not in report.text
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    fields = ("column", "measure", "mean", "published", "published_spread", "difference", "deviations")
    ours = [tuple(one[field] for field in fields) for one in lines]
    assert ours[0] == ("NCM", "accuracy", "41.0", "50.0", "0.3", "-9.0", "flips")
    assert ours[1] == ("other", "accuracy", "", "70.0", "", "", "flips")
    table = json.loads((tmp_path / "results.json").read_text())["table"]
    assert table[0]["values"] == pytest.approx([40.0, 42.0]) and table[0]["difference"] == pytest.approx(-9.0)


def test_a_run_that_completed_is_not_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, mended = Runs(fail_at=1), Runs()
    with pytest.raises(RunFailedError, match=r"run 2 of 2: first: NCM; seed 1 failed: no disk\. Those before it are"):
        made(broken, tmp_path)
    assert [one["seed"] for one in broken.asked] == [0, 1]
    made(mended, tmp_path)
    assert [one["seed"] for one in mended.asked] == [1]
    made(mended, tmp_path, num_clients=4)
    assert [one["seed"] for one in mended.asked] == [1, 0, 1] and not capsys.readouterr().err


def test_a_sweep_keeps_a_published_number_where_the_value_is_its_own() -> None:
    rows = with_sweep(PRESET, {"num-clients": [3, 9], "dirichlet-alpha": [0.5]}).rows
    assert [row.name for row in rows][:2] == [f"first, num-clients {n}, dirichlet-alpha 0.5" for n in (3, 9)]
    assert not any(rows[0].published.values())  # its alpha is another one
    swept = with_sweep(PRESET, {"num-clients": [3, 9]})
    own = swept.rows
    assert own[0].published == PRESET.rows[0].published and not any(own[1].published.values())
    assert swept.settings(own[1], swept.columns[0])["num-clients"] == 9


def test_a_file_of_run_config_keys_gives_the_table_of_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('method = "fedncm"\nfine-tune = "probe"\nstart-head = "random"\n')
    simulate = Runs()
    report = made(simulate, tmp_path / "out", preset=preset_of_run_config(path))
    assert [one["seed"] for one in simulate.asked] == [0, 1, 2, 3, 4]
    assert report.text.startswith("## own\n\n| methods | accuracy (%) |\n| --- | ---: |\n| FedNCM | 44.00 ± 3.16 |")
    assert "| random-probe | 10.00 ± 0.00 | 44.00 ± 3.16 |" in report.text
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
