"""The presets of public federated sets, on stand-ins of the same columns and splits."""

import io
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import own_cache, write_table  # noqa: F401  # a fixture
from tests.support.simulation import clients, read_json, simulate

pytestmark = pytest.mark.usefixtures("own_cache")
CONF = Path(__file__).parents[2] / "conf"
SIZE = 60


def picture(label: int, draw: np.random.Generator) -> bytes:
    pixels = np.clip(np.random.default_rng(label).integers(0, 256, 3) + draw.integers(-30, 30, (16, 16, 3)), 0, 255)
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, format="PNG")
    return stream.getvalue()


def columns(label: str, owner: str, owners: list[Any], seed: int, size: int = SIZE) -> dict[str, list[Any]]:
    """Make a table as the hub has it: images, a class and whose they are."""
    draw = np.random.default_rng(seed)
    labels = [number % 5 for number in range(size)]
    images = [{"bytes": picture(number, draw), "path": None} for number in labels]
    return {"image": images, label: labels, owner: [owners[number // 5 % len(owners)] for number in range(size)]}


WRITERS = [f"f{number:04}_{number % 7}" for number in range(12)]
PACS = ["art_painting", "cartoon", "photo", "sketch"]
# Preset to column of the label, column and values of whose it is, in training and in test data, and number of clients.
SETS: dict[str, tuple[str, str, list[Any], list[Any], int]] = {
    "fed-isic2019": ("label", "center", [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], 6),
    "femnist": ("character", "writer_id", WRITERS, [], 12),
    "pacs": ("label", "domain", PACS, [], 15),
    "camelyon17": ("label", "center", [0, 3, 4], [2], 3),
}


@pytest.mark.parametrize("name", SETS)
def test_a_preset_runs_on_data_of_its_layout(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label, owner, owners, tested, number = SETS[name]
    settings = tomllib.loads((CONF / f"{name}.toml").read_text())
    assert settings["dataset"].startswith("hub:") and settings["partition-column"] == owner
    write_table(tmp_path / "d" / "train-0.parquet", **columns(label, owner, owners, 0))
    if tested:
        write_table(tmp_path / "d" / "test-0.parquet", **columns(label, owner, tested, 1, 20))
    folder = run(tmp_path, settings, dataset=f"parquet:{tmp_path / 'd'}")
    assert len(clients(folder)) == number
    said = capsys.readouterr().out
    assert ("test split: 20 images" in said) is bool(tested)
    if column_and_value := settings.get("left-out-domain", ""):
        assert column_and_value.split("=")[1] in owners and "test split: 15 images" in said
    assert min(result["accuracy"] for result in read_json(folder, "results.json")["methods"].values()) > 0.5


def test_inaturalist_users_as_a_table_of_paths(tmp_path: Path) -> None:
    settings = tomllib.loads((CONF / "inaturalist-users.toml").read_text())
    for split, users in (("train", 9), ("test", 3)):
        rows = ["path,class,user_id"]
        for number in range(users * 10):
            path = tmp_path / "d" / "images" / f"{split}-{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture(number % 5, np.random.default_rng(number)))
            rows.append(f"images/{path.name},{number % 5},{number // 10}")
        (tmp_path / "d" / f"{split}.csv").write_text("\n".join(rows))
    folder = run(tmp_path, settings, dataset=f"csv:{tmp_path / 'd'}")
    assert len(clients(folder)) == 9
    assert set(read_json(folder, "results.json")["methods"]) == {"fedncm", "fed3r", "fedcof"}


def run(tmp_path: Path, settings: dict[str, Any], **instead: str) -> Path:
    return simulate(tmp_path, **{**settings, "backbone": "random:tiny", "input-size": 16, **instead})
