"""Every preset parses and names its published numbers; those that differ in kind run on stand-in data."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstats_app import simulate
from fedstats_app.data import clients
from fedstats_app.settings.app_config import AppConfig
from research.reproduce.catalogue import FILE, Catalogue, PresetError
from research.reproduce.plan import cells_of, planned
from research.reproduce.preset import Preset, preset_names, read_preset
from research.reproduce.report import reproduce
from research.reproduce.running import OF_COLUMN, make_runs
from research.reproduce.simulated import of_app
from tests.data.conftest import make_dataset
from tests.research.reproduce.conftest import DOMAINS
from tests.support.simulation import read_json

FOLDER = Path(__file__).parents[3] / "research" / "presets"
CATALOGUE = Catalogue.read(FOLDER)
NAMES = preset_names(FOLDER)


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_valid_run_and_has_its_number(name: str) -> None:
    preset = read_preset(FOLDER / f"{name}.toml", CATALOGUE)
    cells = cells_of(preset, preset.rows, preset.columns, preset.seeds, {})
    # The papers' numbers have four bytes.
    assert {cell.settings["wire-dtype"] for cell in cells} == {"float32"}
    published = [{column for numbers in row.published.values() for column in numbers} for row in preset.rows]
    if "The values are only drawn" in preset.notes:
        return
    for row, numbers in zip(preset.rows, published, strict=True):
        steps = {str(column.keys.get("start-head", "")) for column in preset.columns}  # nothing is published of them
        own = {f"{OF_COLUMN}{column.name}/": column for column in preset.columns if not column.quoted}
        run_here = {own[start].name for start in own if not any(file.startswith(start) for file in steps)}
        assert run_here <= numbers, f"{row.name}: no published number of {run_here - numbers}"


# Training samples, classes and the values of the column that divides the data; those that no paper prints are public.
MADE_OF: dict[str, tuple[int, int, list[str]]] = {
    **{"cifar10": (50_000, 10, []), "cifar100": (50_000, 100, []), "svhn": (73_257, 10, []), "cars": (8_144, 196, [])},
    **{"imagenet-r": (24_000, 200, []), "cub200": (5_994, 200, []), "flowers": (1_020, 102, [])},
    **{"brain-tumour": (5_712, 4, []), "resisc45": (25_200, 45, []), "eurosat-sub": (5_000, 10, [])},
    **{"sst2": (67_349, 2, []), "sst5": (8_540, 5, []), "mnli": (392_702, 3, []), "ag-news": (120_000, 4, [])},
    "inaturalist-users": (120_300, 1_203, [str(user) for user in range(9_275)]),
    "domainnet": (586_575, 345, ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]),
    **{"pacs": (9_991, 7, [*DOMAINS[:4]]), "office-home": (15_588, 65, [*DOMAINS[4:]])},
}


@pytest.mark.parametrize("name", NAMES)
def test_every_split_can_be_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = read_preset(FOLDER / f"{name}.toml", CATALOGUE)
    seen = set()
    for cell in cells_of(preset, preset.rows, preset.columns, [0], {}):
        config = AppConfig.from_run_config(of_app(cell.settings))
        if (split := (cell.row.data, config.data, config.partition)) in seen:
            continue
        seen.add(split)
        samples, number, values = MADE_OF[cell.row.data]
        columns = {config.partition.partition_column: np.resize(values, samples)} if values else {}
        named = config.data.classes.split(",") if config.data.classes else []
        labels = np.sort(np.arange(samples) % number)
        names = (*named, *map(str, range(number - len(named))))
        whole = dataclasses.replace(make_dataset(labels, number, **columns), class_names=names)
        monkeypatch.setattr(clients, "load_dataset", lambda *_, whole=whole, **__: whole)
        clients.training_set.cache_clear()
        parts = clients.partitions.__wrapped__(config.data, config.partition, 0)
        assert len(parts) == (config.partition.num_clients or len(values)), cell.row.name
        assert sum(map(len, parts)) > 0
    clients.training_set.cache_clear()


# Keys that differ from preset to preset and ask for nothing new; of others, these words count and not only the key.
SIZES = ("backbone", "dataset", "dirichlet-alpha", "image-column", "input-size", "label-column")
SIZES += ("local-epochs", "num-clients", "num-server-rounds", "text-column")
WORDS = ("fine-tune", "partitioner", "optimizer", "method")


def asked_of(preset: Preset) -> set[str]:
    """What a preset asks of the app: sections of results.json, run-config keys, and stages, splits and methods."""
    found = {column.section for column in preset.columns if not column.quoted}
    for column in (one for one in preset.columns if not one.quoted):
        settings = preset.settings(preset.rows[0], column)
        found |= {key for key in settings if key not in SIZES}
        found |= {f"{key}={str(settings[key]).partition('@')[0]}" for key in WORDS if key in settings}
    return found


def different(names: list[str]) -> Iterator[str]:
    """Yield the presets that ask for something that no other one before them does, the largest first."""
    asked = {name: asked_of(read_preset(FOLDER / f"{name}.toml", CATALOGUE)) for name in names}
    seen: set[str] = set()
    for name in sorted(names, key=lambda name: -len(asked[name])):
        if asked[name] - seen:
            yield name
        seen |= asked[name]


@pytest.mark.parametrize("name", [*different(NAMES)])
def test_it_runs_on_stand_in_data(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    preset = read_preset(FOLDER / f"{name}.toml", CATALOGUE)
    prompts = any("simulation.prompts" in column.keys for column in preset.columns)
    texts = "prompted_texts" if prompts else "small_texts"  # tiny, the small network of images, takes no prompts
    small = request.getfixturevalue(texts if prompts or "text-template" in preset.keys else "small")
    given = {**small, **({"num-clients": 0} if preset.keys.get("partitioner") == "domain" else {})}
    if prompts:  # texts in place of images
        given |= {"input-mean": "", "input-std": ""}
    if "classes" in preset.keys:  # by name
        given |= {"classes": "10"}
    runs = planned(cells_of(preset, preset.rows[:1], preset.columns, [0], given))
    said: list[str] = []
    report = reproduce(preset, runs, CATALOGUE, given=given, folder=tmp_path, simulate=simulate, say=said.append)
    measured = {one.column for one in report.comparisons if one.values}
    assert measured == {column.name for column in preset.columns if not column.quoted}
    assert preset.source in (tmp_path / "table.md").read_text() and said


def test_all_of_the_catalogue_is_used() -> None:
    presets = [read_preset(FOLDER / f"{name}.toml", CATALOGUE) for name in NAMES]
    rows = [row for preset in presets for row in preset.rows]
    assert {row.data for row in rows} == set(CATALOGUE.data)
    named = {name for preset in presets for name in preset.deviations}
    named |= {name for preset in presets for column in preset.columns for name in column.deviations}
    named |= {name for row in rows for names in row.deviations.values() for name in names}
    assert named == set(CATALOGUE.deviations) and FILE not in NAMES


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('place = "table 14"', 'plase = "table 14"', "no such field: plase"),
        ('paper = "fedcof"', 'paper = "fedcov"', "no such paper: 'fedcov'; there are fedcgs, fedcof, thesis"),
        ('data = "cub200"', 'data = "cub"', "rows.CUB-200: no such data: 'cub'"),
        ("[51.08, 51.07,", "[51.08,", r"must be 5 number\(s\), one for each value swept over"),
        ('"flips"', '"flops"', "no such deviation: 'flops'"),
        ("published.accuracy.FedCOF = [36", "published.accuracy.FedCOV = [36", "no such column: 'FedCOV'"),
        ('measures = ["accuracy"]', 'measures = ["acuracy"]', "no such measure: 'acuracy'"),
        ('method = "fedcof"', "fedcof.means-per-class = 2", "columns.FedCOF: must have a method, an entry, or say why"),
        ("[sweep]", "[sweep", "cannot be read"),
        ("[36.53, 36.98, 36.96", '["36.53 ± 0.1 ± 2", 36.98, 36.96', 'each such as 41.5 or "41.5 ± 0.1"'),
        ("[36.53, 36.98, 36.96", "[36.53, true, 36.96", "each such as 41.5"),
        ("[36.53, 36.98, 36.96", '[36.53, "about 4", 36.96', "each such as 41.5"),
        ('title = "', 'x = "', "no such field: x"),
    ],
)
def test_a_wrong_preset_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = (FOLDER / "fedcof-table-14.toml").read_text()
    assert old in text
    (tmp_path / "own.toml").write_text(text.replace(old, new))
    with pytest.raises(PresetError, match=message):
        read_preset(tmp_path / "own.toml", CATALOGUE)


def test_fine_tuning_starts_from_the_head_of_the_column_that_it_names(small: Mapping[str, Any], tmp_path: Path) -> None:
    preset = read_preset(FOLDER / "thesis-table-a3.toml", CATALOGUE)
    runs = planned(cells_of(preset, preset.rows[:1], preset.columns[:2], [0, 1], small))
    made = make_runs(runs, tmp_path, simulate, print)
    probes, tuned = (
        [made[run.name] for run in runs if run.settings["fine-tune"].startswith(kind)] for kind in ("probe", "full")
    )
    assert len(probes) == len(tuned) == 2
    for probe, full in zip(probes, tuned, strict=True):
        ended = read_json(probe, "results.json")["training"]["random-probe"]["accuracy"]
        began = read_json(full, "results.json")["training"]["file-full"]["start_accuracy"]
        named = read_json(full, "config.json")["run_config"]["start-head"]
        assert (began, named) == (ended, str(probe / "heads" / "random-probe.safetensors"))


def test_a_cell_with_a_wrong_key_is_named() -> None:
    preset = read_preset(FOLDER / "fedcof-table-14.toml", CATALOGUE)
    with pytest.raises(
        PresetError, match=r"fedcof-table-14: ImageNet-R, fedcof.shrinkage 0.0, FedCOF: .*\n  num-client:"
    ):
        cells_of(preset, preset.rows, preset.columns, [0], {"num-client": 7})
