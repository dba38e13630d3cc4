"""Size, clearing and place of feature caches, and parts that cannot be written or read."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedstats_app.data import DatasetError, FeatureCache, cache_size, clear_cache, default_cache_root
from fedstats_app.data.feature_cache_files import MOST_READ, is_part, read_part, write_part

KEY = "0123456789abcdef" * 4
OTHER_KEY = "f" * 64


def records(n: int) -> np.ndarray:
    made = np.zeros(n, dtype=[("index", "<i8"), ("feature", "<f4", (3,))])
    made["index"] = np.arange(n)
    made["feature"] = np.arange(3 * n).reshape(n, 3)
    return made


@pytest.mark.parametrize("large", [False, True])
def test_part_round_trip(tmp_path: Path, *, large: bool) -> None:
    one = records(1)
    wanted = records(MOST_READ // one.itemsize + 1 if large else 4)
    write_part(tmp_path / "new" / "folder", wanted)
    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert is_part(path)
    back = read_part(path)
    assert isinstance(back, np.memmap) == large and not back.flags.writeable
    np.testing.assert_array_equal(back, wanted)


def test_same_part_is_one_file(tmp_path: Path) -> None:
    for _ in range(2):
        write_part(tmp_path, records(4))
    assert len(list(tmp_path.iterdir())) == 1


def test_crash_before_the_rename_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_part(tmp_path, records(4))
    assert list(tmp_path.iterdir()) == []


def test_whole_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_part(tmp_path, np.arange(4))
    with pytest.raises(ValueError, match="records of"):
        read_part(next(tmp_path.iterdir()))


def test_size_and_clear_touch_only_cached_features(tmp_path: Path) -> None:
    for key in (KEY, OTHER_KEY):
        FeatureCache(tmp_path, key).store(np.arange(2), np.ones((2, 3), dtype=np.float32))
    half_written = tmp_path / "features" / KEY / ".abc.tmp"
    half_written.write_bytes(b"half")
    own = tmp_path / "features" / OTHER_KEY / "mine.txt"
    own.write_text("keep")
    (tmp_path / "thesis.tex").write_text("keep")
    stored = sum(path.stat().st_size for path in tmp_path.rglob("*.npy")) + 4
    assert cache_size(tmp_path) == stored > 0
    assert clear_cache(tmp_path) == stored
    assert cache_size(tmp_path) == 0
    assert own.exists() and (tmp_path / "thesis.tex").exists()
    assert not (tmp_path / "features" / KEY).exists()


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSTATS_CACHE", str(tmp_path))
    assert default_cache_root() == tmp_path
    monkeypatch.setenv("FEDSTATS_CACHE", os.path.join("relative", "folder"))
    with pytest.raises(DatasetError, match="FEDSTATS_CACHE: the path must be absolute"):
        default_cache_root()
    monkeypatch.delenv("FEDSTATS_CACHE")
    assert default_cache_root() == Path("~/.cache/fedstats").expanduser()
