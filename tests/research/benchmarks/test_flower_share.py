"""The app that does nothing is told to send what a run of ours sent."""

import json
from pathlib import Path

from research.benchmarks.flower_share import PEER, size_of


def test_the_other_app_gets_the_clients_and_bytes_of_ours(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"num_clients_asked": 8, "wire_bytes_received": 20_000}))
    assert size_of(f"a line\n{tmp_path}\n") == "num-clients=8 kilobytes=2.500"
    assert (PEER / "pyproject.toml").is_file()
