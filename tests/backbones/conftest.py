import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.hub_cache import HubCache

_REPOSITORY = Path(__file__).resolve().parents[2]


def random_images(n: int, *, seed: int = 0) -> list[Image.Image]:
    """Make RGB images of noise, of different sizes."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(rng.integers(8, 70, 2)) for _ in range(n)]
    return [Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubCache:
    """An empty cache of the hub, and no network."""
    import huggingface_hub._snapshot_download as snapshot
    from huggingface_hub import constants

    root = tmp_path / "hub-cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert snapshot.constants is constants
    return HubCache(root)


@pytest.fixture
def shared_weights() -> Callable[[str], str]:
    """Path of a real weights file that is not part of the repository."""

    def find(name: str) -> str:
        folder = Path(os.environ.get("FEDSTATS_SHARED", _REPOSITORY.parent / "shared"))
        file = folder / "data" / "weights" / name
        if not file.is_file():
            pytest.skip(f"{name} is not here: set FEDSTATS_SHARED to the folder that has data/weights/{name}")
        return str(file)

    return find
