"""The feature cache: what is stored is found, by anybody, and nothing else."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fedstats_app.data import DatasetError, FeatureCache, default_cache_root
from fedstats_app.data.feature_cache import caches_kept_open

DATA, OTHER_DATA, BACKBONE = "0123456789abcdef" * 4, "f" * 64, "b" * 64


def cache_in(root: Path, data: str = DATA, backbone: str = BACKBONE) -> FeatureCache:
    return FeatureCache(root, data, backbone)


def features_of(places: np.ndarray) -> np.ndarray:
    """Make features that tell which sample they belong to."""
    return (np.asarray(places)[:, None] * 10.0 + np.arange(3)).astype(np.float32)  # (n, 3)


def keep(cache: FeatureCache, places: np.ndarray) -> None:
    cache.store(places, features_of(places), [None] * len(places))


def contents_of(places: np.ndarray) -> list[bytes]:
    return [bytes([place] * 16) for place in places.tolist()]


def test_what_is_stored_is_known_and_nothing_else(tmp_path: Path) -> None:
    cache, early = cache_in(tmp_path / "root"), cache_in(tmp_path / "root")
    assert early.lookup(np.arange(4))[0] is None and not (tmp_path / "root").exists()
    keep(cache, np.array([5, 2]))
    features, known = early.lookup(np.array([2, 3, 5, 2, 900]))
    assert features is not None and features.dtype == np.float32 and features.shape == (5, 3)
    np.testing.assert_array_equal(known, [True, False, True, True, False])
    np.testing.assert_array_equal(features[known], features_of(np.array([2, 5, 2])))
    assert np.isnan(features[~known]).all()
    for other in (cache_in(tmp_path / "root", OTHER_DATA), cache_in(tmp_path / "root", backbone="a" * 64)):
        assert other.lookup(np.array([5, 2]))[0] is None


def test_samples_that_hold_the_same_are_found_from_other_data(tmp_path: Path) -> None:
    places, other = np.arange(4), cache_in(tmp_path, OTHER_DATA)
    cache_in(tmp_path).store(places, features_of(places), [*contents_of(places[:3]), None])
    features, known = other.lookup_contents([*contents_of(np.array([2, 7])), None])
    assert known.tolist() == [True, False, False] and features is not None
    np.testing.assert_array_equal(features[0], features_of(np.array([2]))[0])


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9), st.integers(0, 2**31))
def test_another_partition(
    tmp_path_factory: pytest.TempPathFactory, n: int, writers: int, readers: int, seed: int
) -> None:
    root, rng = tmp_path_factory.mktemp("cache"), np.random.default_rng(seed)
    for part in np.array_split(rng.permutation(n), writers):
        keep(cache_in(root), part)
    for part in np.array_split(rng.permutation(n), min(readers, n)):
        features, known = cache_in(root).lookup(part)
        assert known.all() and features is not None
        np.testing.assert_array_equal(features, features_of(part))


def store_many(root: str, worker: int) -> None:
    for step in range(5):
        # All workers write shared samples as well as their own.
        places = np.concatenate([np.arange(5), 100 * worker + np.arange(step * 20, step * 20 + 20)])
        keep(cache_in(Path(root)), places)


def test_concurrent_writers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=store_many, args=(str(tmp_path), worker)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    features, known = cache_in(tmp_path).lookup(np.arange(300))
    assert known.all() and features is not None
    np.testing.assert_array_equal(features, features_of(np.arange(300)))


def test_a_writer_that_is_killed_leaves_what_was_there(tmp_path: Path) -> None:
    places = np.arange(50)
    keep(cache_in(tmp_path), places)
    program = f"""
import sqlite3, sys
connection = sqlite3.connect({str(cache_in(tmp_path).file)!r})
connection.execute("pragma cache_size = 1")
connection.execute("update feature set vector = zeroblob(12)")
print("half", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    features, known = cache_in(tmp_path).lookup(places)
    assert known.all() and features is not None
    np.testing.assert_array_equal(features, features_of(places))


def change(statement: str) -> Callable[[Path], None]:
    def changed(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
            connection.commit()

    return changed


@pytest.mark.parametrize(
    ("damage", "lost"),
    [
        (change("update feature set vector = x'000000000000000000000000' where rowid = 3"), 1),
        (lambda path: path.write_bytes(path.read_bytes()[:40000]), 20),
        (lambda path: path.write_bytes(b"no database" * 100), 20),
    ],
)
def test_damage_is_repaired(
    tmp_path: Path, damage: Callable[[Path], None], lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache, places = cache_in(tmp_path), np.arange(20)
    keep(cache, places)
    damage(cache.file)
    features, known = cache.lookup(places)
    assert "damaged" in caplog.text and lost <= (~known).sum() <= max(lost, 2)
    assert features is None or (features[known] == features_of(places)[known]).all()
    keep(cache, places)
    features, known = cache.lookup(places)
    assert features is not None and np.all(features == features_of(places)) and known.all()


@pytest.mark.parametrize("end", ["deleted", "damaged"])
def test_a_file_kept_open_is_opened_once_and_made_anew_when_it_is_gone(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, opened, connect = cache_in(tmp_path), list[Path](), sqlite3.connect

    def counted(file: Path, timeout: float) -> sqlite3.Connection:
        opened.append(file)
        return connect(file, timeout)

    monkeypatch.setattr(sqlite3, "connect", counted)
    places = np.arange(4)
    with caches_kept_open():
        for _ in range(3):
            keep(cache, places)
            assert np.all(cache.lookup(places)[1])
        assert opened == [cache.file]
        if end == "deleted":
            cache.file.unlink()
        else:
            cache.file.write_bytes(b"no database" * 4096)
        assert not np.any(cache.lookup(places)[1])
        keep(cache, places)
        assert np.all(cache.lookup(places)[1])
    assert opened == [cache.file] * 2 and np.all(cache_in(tmp_path).lookup(places)[1])


def test_disk_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "features").write_text("a file where the folder should be")
    for _ in range(2):
        keep(cache_in(tmp_path), np.arange(2))
    assert caplog.text.count("could not be cached") == 1


def test_what_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        cache_in(tmp_path).store(np.array([0]), np.full((1, 3), np.nan, np.float32), [None])


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
    keep(cache_in(tmp_path / "cache"), np.arange(2))
    made = list((tmp_path / "cache").rglob("*"))
    assert len(made) == 2 and not any(path.stat().st_mode & 0o077 for path in made)
