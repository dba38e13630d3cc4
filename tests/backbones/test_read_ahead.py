from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from fedstats_app.backbones.feature_reader import FeatureReader
from fedstats_app.backbones.read_ahead import read_ahead
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data import load_dataset
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.option import ConfigError
from tests.support.simulation import site_folder


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_order_and_errors_in_their_place(threads: int) -> None:
    def halves(index: int) -> int:
        if index == 5:
            raise ValueError("five")
        return 2 * index

    found = []
    for result in read_ahead(halves, range(40), threads):
        try:
            found.append(result())
        except ValueError as error:
            found.append(str(error))  # type: ignore[arg-type]
    assert found == [2 * index if index != 5 else "five" for index in range(40)]


def test_it_reads_ahead_but_not_everything() -> None:
    read: list[int] = []
    second = threading.Event()

    def note(index: int) -> int:
        read.append(index)
        if index == 1:
            second.set()
        return index

    results = read_ahead(note, range(1000), 1)
    assert next(results)() == 0
    assert second.wait(10), "the next is read while the first is used"
    results.close()  # type: ignore[attr-defined]  # a generator
    assert len(read) < 20


def test_features_are_the_same_bits_with_any_number_of_threads(tmp_path: Path) -> None:
    folder = Path(site_folder(tmp_path / "train", ("ant", "bee"), seed=1, images=20))
    next(folder.rglob("*.png")).write_bytes(b"no image")
    dataset = load_dataset(f"folder:{tmp_path}", "train")
    backbone = load_backbone("random:tiny", batch_size=4, device="cpu")

    def features(threads: int) -> tuple[torch.Tensor, int]:
        reader = FeatureReader(backbone, read_threads=threads)
        blocks = [block for block, _ in reader.blocks(dataset, np.arange(len(dataset)))]
        return torch.cat(blocks), reader.num_unreadable

    alone, unreadable = features(0)
    assert unreadable == 1 and len(alone) == len(dataset) - 1
    for threads in (1, 3):
        found, number = features(threads)
        assert torch.equal(found, alone) and number == 1


def test_the_number_of_threads_is_checked() -> None:
    assert AppConfig.of(read_threads=0).backbone.read_threads == 0
    with pytest.raises(ConfigError, match="read-threads: "):
        AppConfig.of(read_threads=-1)
