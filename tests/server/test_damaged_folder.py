"""A run that goes on in a folder where a byte is another ends with an error that names the file."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedstats_app.base.files import read_json_file, to_json
from tests.support.simulation import simulate

SETTINGS: dict[str, Any] = {"method": "fedncm", "num_clients": 3, "min_clients": 1, "fine_tune": "fedmezo"}
SETTINGS |= {"start_head": "fedncm", "num_server_rounds": 2}
READ_BACK = ["results.json", "rounds.jsonl", "heads/fedncm.safetensors", "mezo/fedncm-fedmezo/start.safetensors"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("finished"), **SETTINGS)


@pytest.mark.parametrize("name", READ_BACK)
def test_it_is_named(finished: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(finished, tmp_path / "runs" / "copy")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] = 0xFF
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(folder / name))):
        simulate(tmp_path, **{**SETTINGS, "num_server_rounds": 3}, resume=str(folder))


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("config.json", {"run_config": []}),
        ("config.json", {"class_names": 3, "backbone": None}),
        ("results.json", {"methods": {"fedncm": {"accuracy": 1.0}}}),
        ("results.json", {"methods": ["fedncm"]}),
    ],
)
def test_other_content_is_named(finished: Path, tmp_path: Path, name: str, entries: dict[str, Any]) -> None:
    folder = shutil.copytree(finished, tmp_path / "runs" / "copy")
    (folder / name).write_text(to_json({**read_json_file(folder / name), **entries}))
    with pytest.raises(ValueError, match=f"{re.escape(str(folder))}.*(does not hold|is not the run)"):
        simulate(tmp_path, **{**SETTINGS, "num_server_rounds": 3}, resume=str(folder))
