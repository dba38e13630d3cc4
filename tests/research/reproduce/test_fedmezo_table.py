"""FedMeZO's table on stand-in texts: two classes, five, and pairs under a prompt."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from fedstats_app import simulate
from research.reproduce.catalogue import Catalogue
from research.reproduce.plan import cells_of, planned
from research.reproduce.preset import read_preset
from tests.support.simulation import read_json

FOLDER = Path(__file__).parents[3] / "research" / "presets"
WORDS = ("bad", "good", "film", "the", "a")


@pytest.mark.parametrize(("row", "num_classes"), [("SST-5", 5), ("MNLI", 3)])
def test_its_other_rows_run_too(row: str, num_classes: int, small_texts: Mapping[str, Any], tmp_path: Path) -> None:
    labels = [label for _ in range(6) for label in range(num_classes)]
    columns: dict[str, list[Any]] = {"label": labels, "text": ["a good film" for _ in labels]}
    if row == "MNLI":
        texts = columns.pop("text")
        columns |= {"premise": texts, "hypothesis": [WORDS[label] for label in labels]}
    for split in ("train", "test"):
        datasets.Dataset.from_dict(columns).to_parquet(str(tmp_path / f"{split}-0.parquet"))
    catalogue = Catalogue.read(FOLDER)
    preset = read_preset(FOLDER / "thesis-table-4-1.toml", catalogue)
    (chosen, *_) = [one for one in preset.rows if one.name.startswith(row)]
    given = {
        **small_texts,
        "dataset": f"parquet:{tmp_path}",
        "label-words": ",".join(WORDS[:num_classes]),
        "output-dir": str(tmp_path / "runs"),
    }
    (run,) = planned(cells_of(preset, [chosen], preset.columns, [0], given))
    folder = simulate(run.settings)
    training = read_json(folder, "results.json")["training"]["label-words-fedmezo"]
    assert "4 of 4 replicas are bit-identical at the end" in training["notes"][0]
