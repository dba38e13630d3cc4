"""The memory of the server at a small size: a line for every mark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.benchmarks import memory_by_clients
from research.benchmarks.memory_by_clients import main

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads /proc")


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    file = tmp_path / "sizes.csv"
    file.write_text("client,num_images\ntest,3\n" + "".join(f"c{n},{n % 5 + 1}\n" for n in range(510)))
    return file


def test_there_is_a_line_for_every_mark(sizes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["--sizes", str(sizes), "--method", "fedcof", "--classes", "7", "--features", "16"])
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(one["clients"], one["solved"]) for one in lines] == [(500, False), (510, False), (510, True)]
    assert all(0 <= one["megabytes"] < 200 for one in lines) and memory_by_clients.MARKS[0] == 500
