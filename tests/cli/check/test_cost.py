"""What a check expects a run to cost, against what runs cost."""

import os
from pathlib import Path

import pytest
import torch
from flwr.app import Message, RecordDict

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.cli.check import cost
from fedstats_app.cli.check.cost import Sizes, bytes_up, check_cost, check_disk, megabytes, server_bytes, sizes_of
from fedstats_app.data import load_dataset
from fedstats_app.data.clients import partitions, training_set
from fedstats_app.methods import METHODS
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.statistics import ClientSize
from fedstats_app.wire import StatisticsRequest, read_statistics_reply, statistics_reply
from tests.support.local_grid import instruction

CLASSES, PRESENT, DIM = 10, 3, 640


@pytest.mark.parametrize("wire_dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_samples", [60, DIM + 60], ids=["few samples", "more than features"])
def test_expected_bytes_are_those_of_a_reply(num_samples: int, method: str, wire_dtype: str) -> None:
    features, labels = torch.rand(num_samples, DIM), torch.arange(num_samples) % PRESENT
    config = AppConfig.of(wire_dtype=wire_dtype)
    spec = METHODS[method].configured().specification
    request = StatisticsRequest(CLASSES, (spec,), wire_dtype=wire_dtype)
    msg: Message = instruction(request.to_content(), "query.statistics")
    statistics = request.statistics(features, labels)
    reply = statistics_reply(msg, statistics, backbone_fingerprint="0" * 64, seconds=1.0)
    sent = read_statistics_reply(reply, request).wire_bytes
    expected = bytes_up(method, Sizes((ClientSize(num_samples, PRESENT),), CLASSES), DIM, config)
    assert expected == sent
    assert isinstance(reply.content, RecordDict)


def test_random_features_and_several_means_are_counted() -> None:
    sizes = Sizes((ClientSize(1000, 3), ClientSize(70, 3)), 10)
    fed3r = "fed3r@random-features=50"
    options = {"method": f"{fed3r},fedcof,fedcgs", "fedcof_means_per_class": 3}
    config = AppConfig.of(**options, wire_dtype="float32")
    once = 2 * (cost._REPLY_BYTES + 3 * 128)
    with_gram = once + 2 * 128
    assert bytes_up(fed3r, sizes, 640, config) == 6 * (4 * 50 + 16) + 2 * 4 * 50 * 51 // 2 + with_gram
    assert (
        bytes_up("fedcgs", sizes, 640, config)
        == 6 * (4 * 640 + 16) + 4 * (640 * 641 // 2 + 70 * 640 - 70 * 69 // 2) + with_gram
    )
    assert bytes_up("fedcof", sizes, 640, config) == 18 * (4 * 640 + 16) + once
    # In half precision with a scale, a number of four bytes, for each row.
    half = bytes_up("fedcof", sizes, 640, AppConfig.of(**options))
    assert half == 18 * (2 * 640 + 4 + 16) + once + 2 * 128


def test_rows_are_those_of_the_partitions() -> None:
    config = AppConfig.of(num_clients=7)
    dataset = training_set(config.data)
    sizes = sizes_of(dataset, config, own_data=False)
    parts = partitions(config.data, config.partition, config.run.seed)
    expected = tuple(ClientSize(len(part), len(set(dataset.labels[part].tolist()))) for part in parts)
    assert sizes == Sizes(expected, 10) and sizes.num_samples == len(dataset)


def test_clients_of_a_very_large_data_set_are_taken_to_be_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_PARTITIONED_AT_MOST", 10)
    config = AppConfig.of(num_clients=7)
    dataset = training_set(config.data)
    sizes = sizes_of(dataset, config, own_data=False)
    assert sizes.num_samples == len(dataset) and sizes.num_rows == 7 * 10
    assert {client.num_samples - len(dataset) // 7 for client in sizes.clients} <= {0, 1}


def test_a_node_is_one_client(pictures: Path) -> None:
    (pictures / "empty").mkdir()
    dataset = load_dataset(f"folder:{pictures}", "train")
    assert sizes_of(dataset, AppConfig(), own_data=True) == Sizes((ClientSize(12, 3),), 4)


def test_memory_grows_with_what_it_depends_on() -> None:
    small, config = Sizes(5 * (ClientSize(20, 10),), 10), AppConfig.of(window_megabytes=1)
    large = Sizes(5005 * (ClientSize(20, 10),), 10)
    base = server_bytes(small, 1280, config)
    assert server_bytes(large, 1280, config) - base == 8 * 2 * 50_000 * 1280
    assert server_bytes(small, 1280, AppConfig.of(window_megabytes=3)) - base == 2 * 2**20
    assert server_bytes(small, 1280, AppConfig.of(window_megabytes=1, method="fedncm")) < base - 6 * 8 * 1280**2 + 1


def findings(machine: int | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, cost.Finding]:
    monkeypatch.setattr(cost, "machine_bytes", lambda: machine)
    monkeypatch.setattr(cost, "process_bytes", lambda: 10**9)
    backbone = load_backbone("random:tiny", input_size=16, device="cpu", batch_size=4)
    sizes, dataset = Sizes(10 * (ClientSize(300, 5),), 10), load_dataset("builtin", "train")
    return {finding.check: finding for finding in check_cost(sizes, backbone, AppConfig(), dataset, own_data=False)}


@pytest.mark.parametrize(("machine", "level"), [(10**8, "FAIL"), (13 * 10**8, "warning"), (10**11, "ok"), (None, "ok")])
def test_memory_is_compared_with_the_machines(machine: int | None, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(machine, monkeypatch)["memory"].level == level


def test_all_methods_asked_for_and_the_time_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(None, monkeypatch)
    assert all(f"{method} " in found["bytes up"].message for method in AppConfig().methods)
    assert "for 3,000 images" in found["time"].message and "ms per image" in found["time"].message


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AppConfig.of(output_dir=str(tmp_path / "runs"), cache_dir=str(tmp_path / "cache"))
    results, cache = check_disk(config, None, Sizes((ClientSize(1000, 1),), 1), 1280)
    assert (results.level, cache.level) == ("ok", "ok")
    assert f"feature cache in {tmp_path / 'cache'}" in cache.message and "about 5.1 MB needed" in cache.message
    usage = cost.shutil.disk_usage(tmp_path)._replace(free=90_000_000)
    monkeypatch.setattr(cost.shutil, "disk_usage", lambda _: usage)
    assert {finding.level for finding in check_disk(config, None, None, 1280)} == {"FAIL"}
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert {finding.level for finding in check_disk(config, None, None, 1280)} == {"FAIL"}


def test_units() -> None:
    assert [megabytes(n) for n in (512, 3_295_368, 1.5e9)] == ["0.5 kB", "3.3 MB", "1.5 GB"]
