import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstats_app.base.checkpoint import latest_checkpoint, read_checkpoint, save_checkpoint
from fedstats_app.base.files import tensors_to_bytes

ARRAYS = {
    "head.weight": torch.tensor([[1.0, -0.0], [torch.finfo(torch.float32).tiny, 3e38]]),
    "backbone.0.num_batches": torch.tensor(7),
    "same name": torch.tensor([1.0]),
}
OPTIMIZER = {"m": torch.tensor([1 / 3], dtype=torch.float64), "same name": torch.tensor([2.0])}
METADATA = {"name": "fedcof-full", "stopped": "", "best": 0.25, "rounds": [1, 2]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save(folder: Path, number: int, **metadata: Any) -> Path:
    return save_checkpoint(folder, number, {"weight": torch.full((3,), float(number))}, {}, metadata)


def test_a_checkpoint_comes_back_to_the_bit(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "new" / "fedcof-full", 12, ARRAYS, OPTIMIZER, METADATA)
    assert path == tmp_path / "new" / "fedcof-full" / "round-000012.safetensors"
    back = latest_checkpoint(path.parent)
    assert back is not None and (back.path, back.round, back.metadata) == (path, 12, METADATA)
    for saved, given in ((back.arrays, ARRAYS), (back.optimizer, OPTIMIZER)):
        assert set(saved) == set(given)
        for name, tensor in given.items():
            assert saved[name].dtype == tensor.dtype and saved[name].numpy().tobytes() == tensor.numpy().tobytes()
    again = save_checkpoint(tmp_path / "again", 12, dict(reversed(ARRAYS.items())), OPTIMIZER, METADATA)
    assert again.read_bytes() == path.read_bytes()


def test_nothing_saved_is_no_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None and latest_checkpoint(tmp_path / "nowhere") is None


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for number in (5, 10, 999_995, 1_000_000):
        save(tmp_path, number)
    assert names(tmp_path) == ["round-1000000.safetensors", "round-999995.safetensors"]
    newest = latest_checkpoint(tmp_path)
    assert newest is not None and newest.round == 1_000_000


def test_a_training_that_came_by_again_leaves_no_later_checkpoint(tmp_path: Path) -> None:
    for number in (5, 10):
        save(tmp_path, number)
    (tmp_path / "round-000010.safetensors").write_bytes(b"damaged")
    save(tmp_path, 8)
    assert names(tmp_path) == ["round-000005.safetensors", "round-000008.safetensors"]


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_of_a_damaged_file_the_one_before_is_taken(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 5)
    path = save(tmp_path, 10)
    content = path.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"cut": content[:-1], "empty": b"", "flipped": flipped}[damage])
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.round == 5
    assert torch.equal(found.arrays["weight"], torch.full((3,), 5.0)) and "round-000010.safetensors" in caplog.text


def test_beginning_anew_because_all_are_damaged_is_for_the_user_to_decide(tmp_path: Path) -> None:
    save(tmp_path, 5).write_bytes(b"damaged")
    header = {"format": "fedstats-checkpoint-1", "round": "ten", "metadata": "[" * 100_000}
    save(tmp_path, 10).write_bytes(tensors_to_bytes({}, header, digest=True))
    with pytest.raises(ValueError, match=r"every checkpoint is damaged: round-000010.*round-000005.*delete them"):
        latest_checkpoint(tmp_path)


def test_another_format_and_what_cannot_be_saved_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.safetensors").write_bytes(tensors_to_bytes({}, {"format": "pt"}, digest=True))
    with pytest.raises(ValueError, match="format must be 'fedstats-checkpoint-1', got 'pt'"):
        read_checkpoint(tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="round must be at least 0, got -1"):
        save(tmp_path / "a", -1)
    with pytest.raises(TypeError, match=r"\$\.key"):
        save(tmp_path / "a", 1, key=object())
    assert not (tmp_path / "a").exists()


def save_and_die(folder: Path, owner: Any, step: str) -> None:
    setattr(owner, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    save(folder, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process that is forked and killed is POSIX's")
@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace")])
def test_a_kill_while_it_is_written_leaves_the_old_one(tmp_path: Path, owner: Any, step: str) -> None:
    """The process is killed for real, with the new file written in part or in whole but not yet named."""
    save(tmp_path, 5)
    process = multiprocessing.get_context("fork").Process(target=save_and_die, args=(tmp_path, owner, step))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    left = [name for name in names(tmp_path) if not name.startswith("round-")]
    assert len(left) == 1 and left[0].endswith(".tmp")
    found = latest_checkpoint(tmp_path)
    assert found is not None and found.round == 5
    save(tmp_path, 10)
    assert names(tmp_path) == ["round-000005.safetensors", "round-000010.safetensors"]
