"""The script that drew the built-in sample, on small idx files of its own."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from research import make_sample


def write_idx(path: Path, values: np.ndarray) -> None:
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes()))


@pytest.fixture
def idx_folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 120), ("t10k", 60)):
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 5, 4), dtype=np.uint8))
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte.gz", np.repeat(np.arange(3, dtype=np.uint8), count // 3))
    return tmp_path


def test_command_writes_the_same_bytes_twice(idx_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_sample, "SAMPLES_PER_CLASS", {"train": 20, "test": 10})
    monkeypatch.setattr(make_sample, "IMAGES_PER_SHEET", 25)
    written = []
    for name in ("first", "second"):
        output = idx_folder / name
        output.mkdir()
        monkeypatch.setattr(sys, "argv", ["make_sample", str(idx_folder), str(output)])
        make_sample.main()
        written.append({path.name: path.read_bytes() for path in output.iterdir()})
    assert sorted(written[0]) == ["test-00.json", "test-01.json", "train-00.json", "train-01.json", "train-02.json"]
    assert written[0] == written[1]
