"""A node says what computed its features; the server writes it down, and both engines are in one sum."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.simulation import clients, read_json, simulate

pytest.importorskip("openvino", reason="the extra `fast` is not installed")


def test_engines_mix_and_each_clients_is_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        {"partition-id": 0, "num-partitions": 2, "engine": "torch"},
        {"partition-id": 1, "num-partitions": 2},
    ]
    settings = {"backbone": "random:tiny", "input_size": 16, "num_clients": 4, "method": "fedncm"}
    settings |= {"partitioner": "dirichlet", "partition.samples-per-class": 4, "test_dataset": "", "engine": "openvino"}
    folder = simulate(tmp_path, node_configs=nodes, **settings)  # type: ignore[arg-type]
    assert sorted(one["engine"] for one in clients(folder)) == ["openvino", "openvino", "torch", "torch"]
    assert all(one["outcome"] == "merged" for one in clients(folder))
    assert read_json(folder, "config.json")["backbone"]["engine"] == "openvino"
    assert "features by OpenVINO" in capsys.readouterr().out
