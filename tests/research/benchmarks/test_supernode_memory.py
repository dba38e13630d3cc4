"""The measurement of a SuperNode's memory, on a network that takes no time."""

import json

import pytest

from research.benchmarks import supernode_memory


def test_memory_does_not_grow_with_the_number_of_images(capsys: pytest.CaptureFixture[str]) -> None:
    # All images at once would be 500 x 3 x 128 x 128 x 4 bytes, 98 MB, not 10: a sixth of what torch takes.
    assert supernode_memory.main(["--backbone", "random:tiny", "--input-size", "128", "--images", "50", "500"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["images"] for one in found["measurements"]] == [50, 500]
    assert 1.0 <= found["ratio"] <= 1.08 < found["limit"]
