import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.settings.app_config import AppConfig
from research.reproduce.catalogue import Catalogue
from research.reproduce.command import main
from research.reproduce.preset import preset_names
from tests.support.trainings import write_run

FOLDER = Path(__file__).parents[3] / "research" / "presets"
PRESET = "fedcof-table-14"


def test_without_a_name_all_tables_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[1:]]
    number = len(preset_names(FOLDER))
    assert names[:number] == preset_names(FOLDER)
    others = [one for one in Catalogue.read(FOLDER).places if not one.presets]
    assert len(names[number:]) == len(others) > 10  # where the rest is
    assert any("thesis: figure 3.10" in line and "num-clients=[50,100,200,500]" in line for line in lines)


def test_a_dry_run_prints_what_flwr_run_takes(capsys: pytest.CaptureFixture[str]) -> None:
    words = [PRESET, "--row", "CUB*", "--seeds", "0,2-3", "dirichlet-alpha=[0.1,0.5]", "dataset=parquet:/some/where"]
    assert main([*words, "--dry-run", "label-column=label"]) == 0
    blocks = capsys.readouterr().out.strip().split("\n\n")
    settings = [tomllib.loads(block) for block in blocks]
    assert [one["seed"] for one in settings] == 2 * [0, 2, 3]
    assert {one["dirichlet-alpha"] for one in settings} == {0.1, 0.5}
    for one in settings:
        config = AppConfig.from_run_config(one)
        assert config.data.dataset == "parquet:/some/where" and config.data.label_column == "label"
        assert len(config.methods) == 5  # gammas, in one run


def test_table_and_files_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def simulate(settings: Mapping[str, Any]) -> Path:
        entries = {name: {"accuracy": 0.5, "num_examples": 9} for name in AppConfig.from_run_config(settings).methods}
        return write_run(Path(settings["output-dir"]), [], entries)

    monkeypatch.setattr("fedstats_app.simulation.simulate", simulate)
    out = tmp_path / "out"
    assert main([*[PRESET, "--row", "cub*", "--output-dir", str(out), "--seeds", "0-1", "dataset=builtin"]]) == 0
    printed = capsys.readouterr().out
    assert "| CUB-200, fedcof.shrinkage 1.0 | FedCOF | 50.00 ± 0.00 | 53.57 | -3.57 |" in printed
    assert (out / "table.md").read_text() in printed and str(out / "table.csv") in printed


def rows_and_gammas(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[tuple[str, object]]:
    assert main([PRESET, "--row", "cub-200", "--seeds", "0", "--dry-run", *words]) == 0
    blocks = capsys.readouterr().out.strip().split("\n\n")
    return [(block.splitlines()[0], tomllib.loads(block)["fedcof.shrinkage"]) for block in blocks]


def test_a_key_that_the_table_sweeps_over_replaces_its_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    one = rows_and_gammas(["fedcof.shrinkage=0.5"], capsys)
    assert one == [("# CUB-200, fedcof.shrinkage 0.5: FedCOF; seed 0", 0.5)]
    # With the published number of this gamma, so by the table's own name.
    assert rows_and_gammas(["fedcof.shrinkage=1"], capsys) == [("# CUB-200, fedcof.shrinkage 1.0: FedCOF; seed 0", 1.0)]
    ((title, _),) = rows_and_gammas(["fedcof.shrinkage=[0.5,1]"], capsys)
    assert title == "# CUB-200, fedcof.shrinkage 0.5, CUB-200, fedcof.shrinkage 1.0: FedCOF; seed 0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedcof-table-99"], "no such preset: 'fedcof-table-99'; did you mean fedcof-table-"),
        (["fedcof-tabel-3"], "no such preset: 'fedcof-tabel-3'; did you mean fedcof-table-3?"),
        (["/no/where.toml"], "/no/where.toml cannot be read"),
        ([PRESET, "num-clients"], "'num-clients' is neither KEY=VALUE nor an option"),
        ([PRESET, "--rows=CUB"], "'--rows=CUB' is neither KEY=VALUE nor an option"),
        ([PRESET, "seed=3"], "seed: set by this command"),
        ([PRESET, "dirichlet-alpha=[]"], "dirichlet-alpha: must be a value or a list of at least one"),
        ([PRESET, "--row", "CIFAR*"], "no row is called 'CIFAR*'; there are: ImageNet-R, fedcof.shrinkage 0.0;"),
        ([PRESET, "--seeds", "1,1"], "--seeds: must be different whole numbers from 0, such as 0-4 or 0,2, got '1,1'"),
        ([PRESET, "--seeds", "x"], "got 'x'"),
        ([PRESET, "num-client=3"], "num-client: no such key; did you mean num-clients?"),
        ([PRESET, "--row", "CUB*", "dataset=folder:/no/where"], "CUB-200 cannot be reached: folder:/no/where"),
    ],
)
def test_mistakes_have_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*words, "--output-dir", str(tmp_path)]) == 2 and message in capsys.readouterr().err
