"""What a check expects a run to cost, against what runs cost."""

import os
from pathlib import Path

import pytest
import torch

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.cli.check import data
from fedstats_app.cli.check.data import REPLY_BYTES, bytes_up, check_cost, check_disk, client_sizes, server_bytes
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
    spec = METHODS[method].configured().specification
    request = StatisticsRequest(CLASSES, (spec,), wire_dtype=wire_dtype)
    statistics = request.statistics(features, labels)
    msg = instruction(request.to_content(), "query.statistics")
    reply = statistics_reply(msg, statistics, backbone_fingerprint="0" * 64, seconds=1.0)
    expected = bytes_up(method, [ClientSize(num_samples, PRESENT)], DIM, AppConfig.of(wire_dtype=wire_dtype))
    assert expected == read_statistics_reply(reply, request).wire_bytes


def test_random_features_and_several_means_are_counted() -> None:
    clients = [ClientSize(1000, 3), ClientSize(70, 3)]
    fed3r = "fed3r@random-features=50"
    options = {"method": f"{fed3r},fedcof,fedcgs", "fedcof_means_per_class": 3}
    config = AppConfig.of(**options, wire_dtype="float32")
    once = 2 * (REPLY_BYTES + 3 * 128)
    with_gram = once + 2 * 128
    assert bytes_up(fed3r, clients, 640, config) == 6 * (4 * 50 + 16) + 2 * 4 * 50 * 51 // 2 + with_gram
    gram = 4 * (640 * 641 // 2 + 70 * 640 - 70 * 69 // 2)
    assert bytes_up("fedcgs", clients, 640, config) == 6 * (4 * 640 + 16) + gram + with_gram
    assert bytes_up("fedcof", clients, 640, config) == 18 * (4 * 640 + 16) + once
    # In half precision with a scale, a number of four bytes, for each row.
    half = bytes_up("fedcof", clients, 640, AppConfig.of(**options))
    assert half == 18 * (2 * 640 + 4 + 16) + once + 2 * 128


def test_clients_are_those_of_the_partitions_or_the_node_alone(pictures: Path) -> None:
    config = AppConfig.of(num_clients=7)
    dataset = training_set(config.data)
    parts = partitions(config.data, config.partition, config.run.seed)
    expected = [ClientSize(len(part), len(set(dataset.labels[part].tolist()))) for part in parts]
    assert client_sizes(dataset, config, own_data=False) == expected
    (pictures / "empty").mkdir()
    node = load_dataset(f"folder:{pictures}", "train")
    assert client_sizes(node, AppConfig(), own_data=True) == [ClientSize(12, 3)]


def test_memory_grows_with_what_it_depends_on() -> None:
    def needed(number: int = 5, **settings: object) -> int:
        config = AppConfig.of(**{"window_megabytes": 1, **settings})
        return server_bytes(number * [ClientSize(20, 10)], 10, 1280, config)

    base = needed()
    assert needed(5005) - base == 8 * 2 * 50_000 * 1280
    assert needed(window_megabytes=3) - base == 2 * 2**20
    assert needed(method="fedncm") < base - 6 * 8 * 1280**2 + 1


@pytest.mark.parametrize(("machine", "level"), [(10**8, "FAIL"), (13 * 10**8, "warning"), (10**11, "ok"), (None, "ok")])
def test_bytes_and_time_are_told_and_memory_is_compared_with_the_machines(
    machine: int | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "machine_bytes", lambda: machine)
    monkeypatch.setattr(data, "process_bytes", lambda: 10**9)
    backbone = load_backbone("random:tiny", input_size=16, device="cpu", batch_size=4)
    clients, dataset = 10 * [ClientSize(300, 5)], load_dataset("builtin", "train")
    found = {one.check: one for one in check_cost(clients, backbone, AppConfig(), dataset, own_data=False)}
    assert found["memory"].level == level
    assert all(f"{method} " in found["bytes up"].message for method in AppConfig().methods)
    assert "for 3,000 images" in found["time"].message and "ms per image" in found["time"].message


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = AppConfig.of(output_dir=str(tmp_path / "runs"), cache_dir=str(tmp_path / "cache"))
    results, cache = check_disk(config, None, [ClientSize(1000, 1)], 1280)
    assert (results.level, cache.level) == ("ok", "ok")
    assert f"feature cache in {tmp_path / 'cache'}" in cache.message and "about 5.12 MB needed" in cache.message
    usage = data.shutil.disk_usage(tmp_path)._replace(free=90_000_000)
    monkeypatch.setattr(data.shutil, "disk_usage", lambda _: usage)
    assert {finding.level for finding in check_disk(config, None, [], 1280)} == {"FAIL"}
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert {finding.level for finding in check_disk(config, None, [], 1280)} == {"FAIL"}
