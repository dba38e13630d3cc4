"""The device that computes features, and the one that could."""

from pathlib import Path

import pytest
import torch

from fedstats_app.backbones import device


def test_a_gpu_that_a_simulated_client_was_not_given_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(device, "GPU", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # as Ray does
    device._name_hidden_gpu.cache_clear()
    assert [device.resolve_device("auto") for _ in range(2)] == [torch.device("cpu")] * 2
    [line] = caplog.messages
    assert line.startswith("device cpu, though this machine has a GPU") and "client-resources-num-gpus=0.5" in line
