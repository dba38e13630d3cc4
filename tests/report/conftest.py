"""Runs of the whole app to report on."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedstats_app.testing import Fault
from tests.support.simulation import simulate, site_folder

# Where somebody's data lie is nobody else's business.
PRIVATE = "private-folder-of-ann"
FLOWERS = ("rose", "tulip", "daisy")
CLASSES = ("ant & bee", "<script>cat", "dog")


@pytest.fixture(scope="session")
def server_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with a test set on the server, and trainings from two heads."""
    folder = tmp_path_factory.mktemp(PRIVATE)
    for part, images in (("train", 24), ("test", 8)):
        site_folder(folder / "flowers" / part, FLOWERS, seed=images, images=images)
    shutil.copy(folder / "flowers/test/tulip/0.png", folder / "flowers/test/rose/tulip.png")  # no head gets it right
    return simulate(
        folder,
        dataset=f"folder:{folder}/flowers",
        num_clients=4,
        partitioner="iid",
        plots=True,
        fine_tune="probe",
        start_head="random,fed3r",
        num_server_rounds=2,
    )


@pytest.fixture(scope="session")
def client_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of three sites with data of their own, who evaluate; a fourth fails."""
    folder = tmp_path_factory.mktemp(PRIVATE)
    nodes: list[Mapping[str, object]] = [
        {"data-path": site_folder(folder / str(seed), CLASSES, seed=seed, images=24)} for seed in range(4)
    ]
    return simulate(
        folder, node_configs=nodes, faults={3: Fault(raises="out of <memory>")}, plots=True, method="fedncm,fedcof"
    )


@pytest.fixture
def copied(server_run: Path, tmp_path: Path) -> Path:
    """Return a copy of the first one, to change."""
    return Path(shutil.copytree(server_run, tmp_path / "runs" / "a-run"))
