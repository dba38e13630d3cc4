"""The feature cache: what is stored is found, by anybody, and nothing else."""

import hashlib
import io
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from fedstats_app.data import DatasetError, FeatureCache, default_cache_root
from fedstats_app.data.feature_cache import MOST_OPEN

KEY = "0123456789abcdef" * 4
OTHER_KEY = "f" * 64


def features_of(indices: np.ndarray) -> np.ndarray:
    """Make features that tell which sample they belong to."""
    return (np.asarray(indices)[:, None] * 10.0 + np.arange(3)).astype(np.float32)  # (n, 3)


def test_what_is_stored_is_known_and_nothing_else(tmp_path: Path) -> None:
    cache, early = FeatureCache(tmp_path / "root", KEY), FeatureCache(tmp_path / "root", KEY)
    features, known = early.lookup(np.arange(4))
    assert features is None and not known.any() and not (tmp_path / "root").exists()
    cache.store(np.array([5, 2]), features_of(np.array([5, 2])))
    features, known = cache.lookup(np.array([2, 3, 5, 2, 900]))
    assert features is not None and features.dtype == np.float32 and features.shape == (5, 3)
    np.testing.assert_array_equal(known, [True, False, True, True, False])
    np.testing.assert_array_equal(features[known], features_of(np.array([2, 5, 2])))
    assert np.isnan(features[~known]).all()
    assert early.lookup(np.array([5, 2]))[1].all(), "parts of others are found when something is missing"
    assert FeatureCache(tmp_path / "root", OTHER_KEY).lookup(np.array([5, 2]))[0] is None


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**31))
def test_another_partition_of_the_same_data_finds_all(
    tmp_path_factory: pytest.TempPathFactory, n: int, writers: int, readers: int, seed: int
) -> None:
    root = tmp_path_factory.mktemp("cache")
    rng = np.random.default_rng(seed)
    for part in np.array_split(rng.permutation(n), writers):
        FeatureCache(root, KEY).store(part, features_of(part))
    reader = FeatureCache(root, KEY)
    for part in np.array_split(rng.permutation(n), min(readers, n)):
        features, known = reader.lookup(part)
        assert known.all() and features is not None
        np.testing.assert_array_equal(features, features_of(part))


def test_disk_is_not_searched_when_all_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = FeatureCache(tmp_path, KEY)
    cache.store(np.arange(3), features_of(np.arange(3)))
    assert cache.lookup(np.arange(3))[1].all()
    monkeypatch.setattr(os, "listdir", lambda folder: pytest.fail("searched the disk"))
    assert cache.lookup(np.array([2, 0]))[1].all()


def store_many(root: str, worker: int) -> None:
    cache = FeatureCache(Path(root), KEY)
    for step in range(10):
        # All workers write shared samples as well as their own.
        indices = np.concatenate([np.arange(5), 100 * worker + np.arange(step * 10, step * 10 + 10)])
        cache.store(indices, features_of(indices))


def test_concurrent_writers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=store_many, args=(str(tmp_path), worker)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    features, known = FeatureCache(tmp_path, KEY).lookup(np.arange(300))
    assert known.all() and features is not None
    np.testing.assert_array_equal(features, features_of(np.arange(300)))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("damage", ["truncated", "flipped feature", "flipped index", "emptied", "replaced"])
def test_damaged_part_is_logged_and_never_believed(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = FeatureCache(tmp_path, KEY)
    writer.store(np.arange(10), features_of(np.arange(10)))
    path = next(writer.folder.iterdir())
    writer.store(np.arange(10, 20), features_of(np.arange(10, 20)))
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "emptied":
        content = bytearray()
    elif damage == "replaced":
        content = bytearray(next(p for p in writer.folder.iterdir() if p != path).read_bytes())
    else:
        content[-1 if damage == "flipped feature" else -20] ^= 1
    path.write_bytes(content)
    reader = FeatureCache(tmp_path, KEY)
    with caplog.at_level(logging.WARNING):
        features, known = reader.lookup(np.arange(20))
        reader.lookup(np.arange(20))
    np.testing.assert_array_equal(known, [False] * 10 + [True] * 10)
    assert features is not None
    np.testing.assert_array_equal(features[10:], features_of(np.arange(10, 20)))
    assert caplog.text.count("will be computed again") == 1
    reader.store(np.arange(10), features_of(np.arange(10)))
    features, known = FeatureCache(tmp_path, KEY).lookup(np.arange(20))
    assert known.all() and features is not None
    np.testing.assert_array_equal(features, features_of(np.arange(20)))


def test_computing_again_repairs_for_the_process_that_saw_the_damage(tmp_path: Path) -> None:
    writer = FeatureCache(tmp_path, KEY)
    writer.store(np.arange(4), features_of(np.arange(4)))
    next(writer.folder.iterdir()).write_bytes(b"")
    reader = FeatureCache(tmp_path, KEY)
    assert not reader.lookup(np.arange(4))[1].any()
    reader.store(np.arange(4), features_of(np.arange(4)))
    assert reader.lookup(np.arange(4))[1].all()


def test_unfinished_and_foreign_files_are_ignored(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path, KEY)
    cache.store(np.arange(2), features_of(np.arange(2)))
    (cache.folder / ".abc.tmp").write_bytes(b"half")
    (cache.folder / "notes.npy").write_bytes(b"no part")
    assert FeatureCache(tmp_path, KEY).lookup(np.arange(3))[1].tolist() == [True, True, False]


def test_features_of_another_width_are_not_mixed_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = FeatureCache(tmp_path, KEY)
    cache.store(np.arange(2), features_of(np.arange(2)))
    assert cache.lookup(np.arange(2))[1].all()
    cache.store(np.array([2]), np.ones((1, 5), dtype=np.float32))
    with caplog.at_level(logging.WARNING):
        assert cache.lookup(np.arange(3))[1].tolist() == [True, True, False]
    assert "will be computed again" in caplog.text


def test_disk_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "features").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        for key in (KEY, KEY[::-1], KEY):  # of two clients
            FeatureCache(tmp_path, key).store(np.arange(2), features_of(np.arange(2)))
    assert caplog.text.count("could not be cached") == 1


def test_what_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        FeatureCache(tmp_path, KEY).store(np.array([0]), np.full((1, 3), np.nan, np.float32))
    assert not list(tmp_path.rglob("*.npy"))


@pytest.mark.parametrize("key", ["", "abc", "../../" + "a" * 32, "A" * 64, "a" * 129])
def test_key_must_be_a_digest(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="hex digits"):
        FeatureCache(tmp_path, key)


def test_more_parts_than_a_process_may_have_files_open(tmp_path: Path) -> None:
    for index in range(150):
        FeatureCache(tmp_path, KEY).store(np.array([index]), features_of(np.array([index])))
    program = f"""
import resource
import numpy as np
from pathlib import Path
from fedstats_app.data import FeatureCache
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
features, known = FeatureCache(Path({str(tmp_path)!r}), {KEY!r}).lookup(np.arange(150))
assert known.all(), known.sum()
assert (features[:, 0] == 10 * np.arange(150)).all()
"""
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_cleared_after_it_was_found_is_not_known_and_can_be_stored_again(tmp_path: Path) -> None:
    cache, everything = FeatureCache(tmp_path, KEY), np.arange(MOST_OPEN + 1)
    for index in everything:
        cache.store(np.array([index]), features_of(np.array([index])))
    assert cache.lookup(everything)[1].all()
    shutil.rmtree(tmp_path / "features")
    assert not cache.lookup(everything)[1].any()
    for index in everything:
        cache.store(np.array([index]), features_of(np.array([index])))
    features, known = cache.lookup(everything)
    assert known.all() and features is not None
    np.testing.assert_array_equal(features, features_of(everything))


def test_a_folder_is_not_listed_for_every_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[object] = []
    names = [f"{number}" for number in range(1000)]
    monkeypatch.setattr(os, "listdir", lambda folder: listings.append(folder) or names)
    cache = FeatureCache(tmp_path, KEY)
    cache.folder.mkdir(parents=True)
    for _ in range(110):
        assert not cache.lookup(np.arange(1))[1].any()
    assert len(listings) == 10  # every 11th time


def test_whole_file_of_another_kind_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = io.BytesIO()
    np.save(stream, np.arange(4))
    cache = FeatureCache(tmp_path, KEY)
    cache.folder.mkdir(parents=True)
    (cache.folder / f"{hashlib.sha256(stream.getvalue()).hexdigest()}.npy").write_bytes(stream.getvalue())
    assert not cache.lookup(np.arange(4))[1].any() and "records of (index, feature) are needed" in caplog.text


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSTATS_CACHE", str(tmp_path))
    assert default_cache_root() == tmp_path
    monkeypatch.setenv("FEDSTATS_CACHE", os.path.join("relative", "folder"))
    with pytest.raises(DatasetError, match="FEDSTATS_CACHE: the path must be absolute"):
        default_cache_root()
    monkeypatch.delenv("FEDSTATS_CACHE")
    assert default_cache_root() == Path("~/.cache/fedstats").expanduser()


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    cache = FeatureCache(tmp_path / "cache", KEY, "b" * 64)
    cache.store(np.arange(2), features_of(np.arange(2)), [bytes(16), bytes(16)])
    made = list((tmp_path / "cache").rglob("*"))
    assert len(made) == 6  # two folders each for features and contents, and a file in each
    assert not any(path.stat().st_mode & 0o077 for path in made)
