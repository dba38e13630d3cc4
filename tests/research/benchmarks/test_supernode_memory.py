"""The measurement of a SuperNode's memory, on a network that takes no time."""

import json
from pathlib import Path

import pytest

from research.benchmarks import supernode_memory


def test_memory_does_not_grow_with_the_number_of_images(capsys: pytest.CaptureFixture[str]) -> None:
    # All images at once would be 2,000 x 3 x 64 x 64 x 4 bytes, 98 MB more than 100: a sixth of what torch takes.
    arguments = ["--backbone", "random:tiny", "--input-size", "64", "--images", "100", "2000"]
    assert supernode_memory.main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["images"] for one in found["measurements"]] == [100, 2000]
    assert 1.0 <= found["ratio"] <= 1.08 < found["limit"]


def test_images_are_all_there_and_few_are_different(tmp_path: Path) -> None:
    supernode_memory.make_images(tmp_path, 120)
    files = sorted(tmp_path.glob("class-*/*.png"))
    assert len(files) == 120 and len({file.stat().st_ino for file in files}) == supernode_memory.DIFFERENT_IMAGES
    assert len(list(tmp_path.iterdir())) == supernode_memory.NUM_CLASSES


def test_a_process_that_fails_is_an_error_with_its_reason() -> None:
    with pytest.raises(RuntimeError, match="no-such-network"):
        supernode_memory.measure("no-such-network", [50])
