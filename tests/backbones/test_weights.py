import hashlib
import pickle
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedstats_app.backbones import weights
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.weights import WeightsError, official_checkpoint, read_state_file

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.fixture(autouse=True)
def _empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    for variable in _OFFLINE:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def model_zoo() -> Iterator[tuple[str, bytes]]:
    """Serve one file on this machine, under a name with its own digest and under one with another's."""
    content = b"not really weights" * 1000

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Keep the test's output clean."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", content
    server.shutdown()
    server.server_close()
    thread.join()


def _tiny_state() -> dict[str, torch.Tensor]:
    return load_backbone("random:tiny", device="cpu").module.state_dict()


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_reads_back_what_was_saved(suffix: str, tmp_path: Path) -> None:
    state = _tiny_state()
    file = tmp_path / f"tiny{suffix}"
    save_file(state, file) if suffix == ".safetensors" else torch.save(state, file)
    read = read_state_file(file)
    assert read.keys() == state.keys() and all(torch.equal(read[key], state[key]) for key in state)


def test_refuses_what_is_no_state_dict(tmp_path: Path) -> None:
    garbage, nested, whole, broken = (tmp_path / f"{name}.pth" for name in ("garbage", "nested", "whole", "broken"))
    garbage.write_bytes(b"garbage")
    torch.save({"net": _tiny_state(), "epoch": 3}, nested)
    torch.save(nn.Linear(2, 2), whole)
    torch.save({"weight": torch.tensor([1.0, float("nan")])}, broken)
    (tmp_path / "garbage.safetensors").write_bytes(b"garbage")
    with pytest.raises(WeightsError, match=r"garbage\.pth is no state dict that can be read safely"):
        read_state_file(garbage)
    with pytest.raises(WeightsError, match=r"garbage\.safetensors cannot be read as safetensors"):
        read_state_file(tmp_path / "garbage.safetensors")
    with pytest.raises(WeightsError, match=r"nested\.pth must hold a flat dict of tensors .* got keys net, epoch"):
        read_state_file(nested)
    with pytest.raises(WeightsError, match=r"whole\.pth is no state dict that can be read safely"):
        read_state_file(whole)
    with pytest.raises(WeightsError, match=r"broken\.pth has NaN or infinite values in weight"):
        read_state_file(broken)


def test_never_runs_code_from_a_file(tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (trace,)

    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"weight": Evil()}, protocol=2))
    with pytest.raises(WeightsError, match=r"evil\.pth"):
        read_state_file(tmp_path / "evil.pth")
    assert not trace.exists()


def test_says_which_file_is_missing_or_of_the_wrong_kind(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"there is no weights file '.*absent\.pth'"):
        read_state_file(tmp_path / "absent.pth")
    with pytest.raises(WeightsError, match=r"\.safetensors, \.pth, \.pt, \.bin, \.index\.json; got .*weights\.onnx"):
        read_state_file(tmp_path / "weights.onnx")


def test_wrong_keys_and_shapes_are_named(tmp_path: Path) -> None:
    state = _tiny_state()
    file = tmp_path / "tiny.pth"
    torch.save({("extra" if key == "0.bias" else key): value for key, value in state.items()}, file)
    with pytest.raises(WeightsError, match=r"file tiny\.pth do not fit .* missing: 0\.bias; 1 keys unexpected: extra"):
        load_backbone("tiny", weights=str(file), device="cpu")
    torch.save({**state, "0.bias": torch.zeros(5)}, file)
    with pytest.raises(WeightsError, match=r"size mismatch for 0\.bias"):
        load_backbone("tiny", weights=str(file), device="cpu")


def test_downloads_once_checks_the_digest_and_leaves_no_part(
    model_zoo: tuple[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, content = model_zoo
    url = f"{address}/net-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    file = official_checkpoint(url)
    assert file.read_bytes() == content
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    with pytest.raises(WeightsError, match=r"net-00000000\.pth could not be downloaded \(its sha256 starts with"):
        official_checkpoint(f"{address}/net-00000000.pth")
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    monkeypatch.setattr(weights.urllib.request, "urlopen", lambda *a, **k: pytest.fail("it lies there already"))
    assert official_checkpoint(url) == file


def test_no_network_is_an_error_that_says_what_to_put_where(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "checkpoints"
    with pytest.raises(WeightsError) as caught:
        official_checkpoint("http://127.0.0.1:9/models/resnet18-f37072fd.pth")  # the discard port: nobody listens
    message = str(caught.value)
    assert f"put resnet18-f37072fd.pth into {folder}" in message and "backbone-weights" in message
    assert "http" not in message
    assert list(folder.iterdir()) == []


def test_a_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(weights, "DOWNLOAD_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        started = time.monotonic()
        with pytest.raises(WeightsError, match="could not be downloaded"):
            official_checkpoint(f"http://127.0.0.1:{port}/resnet18-f37072fd.pth")
        assert time.monotonic() - started < 10


@pytest.mark.parametrize("variable", _OFFLINE)
def test_offline_environment_is_an_error_at_once(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(weights.urllib.request, "urlopen", lambda *a, **k: pytest.fail("offline means no network"))
    with pytest.raises(WeightsError, match=rf"resnet18-f37072fd\.pth are not on this machine and {variable} forbids"):
        load_backbone("resnet18", device="cpu")
