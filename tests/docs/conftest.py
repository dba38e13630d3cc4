"""A small data set, and a run folder of it as the app itself leaves one."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.simulation import simulate


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three colours, 24 to train and 6 to test of each."""
    root, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, size in (("train", 24), ("test", 6)):
        for channel, name in enumerate(("red", "green", "blue")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(size):
                pixels = rng.integers(0, 120, size=(8, 8, 3), dtype=np.uint8)
                pixels[:, :, channel] += 100
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def run_config(image_folder: Path) -> dict[str, str | int | float | bool]:
    """A run of a second: six clients, the smallest backbone, a few rounds of training."""
    return {
        "dataset": f"folder:{image_folder}",
        "num-clients": 6,
        "partitioner": "iid",
        "backbone": "random:tiny",
        "device": "cpu",
        "feature-cache": "off",
        "plots": False,
        "fine-tune": "probe",
        "num-server-rounds": 3,
        "save-statistics": "clients",
    }


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, run_config: dict[str, str | int | float | bool]) -> Path:
    """The run folder of an in-process run of both apps."""
    return simulate(tmp_path_factory.mktemp("runs"), **{"input-size": 0, **run_config})


@pytest.fixture(scope="session")
def mezo_run(tmp_path_factory: pytest.TempPathFactory, run_config: dict[str, str | int | float | bool]) -> Path:
    """The run folder of a run that tunes by FedMeZO."""
    root = tmp_path_factory.mktemp("mezo-runs")
    more = {"method": "fedncm", "fine-tune": "fedmezo", "cache-dir": str(root.with_name("mezo-cache"))}
    return simulate(root, **{"input-size": 0, **run_config, **more})


@pytest.fixture
def home(
    tmp_path: Path, finished_run: Path, mezo_run: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A user's home, which is also the working directory, with the run folders and the picture of the guide in it."""
    shutil.copytree(mezo_run, tmp_path / "fedstats-runs" / "20260102-120000")
    shutil.copytree(finished_run, tmp_path / "fedstats-runs" / "20260101-120000")
    shutil.copy(image_folder / "test" / "red" / "0.png", tmp_path / "picture.png")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDSTATS_CACHE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path
