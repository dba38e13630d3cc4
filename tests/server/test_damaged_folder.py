"""A run that goes on in a folder where a bit has flipped ends with an error that names the file."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.simulation import simulate

SETTINGS: dict[str, Any] = {
    "method": "fedncm",
    "num_clients": 3,
    "min_clients": 1,
    "fine_tune": "fedmezo",
    "start_head": "fedncm",
    "num_server_rounds": 2,
}
READ_BACK = [
    "results.json",
    "rounds.jsonl",
    "heads/fedncm.safetensors",
    "mezo/fedncm-fedmezo/start.safetensors",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("finished"), **SETTINGS)


@pytest.mark.parametrize("name", READ_BACK)
def test_it_is_named(finished: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(finished, tmp_path / "runs" / "copy")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(folder / name))):
        simulate(tmp_path, **{**SETTINGS, "num_server_rounds": 3}, resume=str(folder))
