"""Weights from files: other names, parts, training checkpoints, pickles and what they must not do; downloads."""

import hashlib
import json
import pickle
import socket
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedstats_app.backbones import weights
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.weights import WeightsError, official_checkpoint, read_state_file
from tests.backbones.conftest import serving

State = dict[str, Tensor]
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@pytest.fixture
def state() -> State:
    return dict(load_backbone("random:tiny", device="cpu").module.state_dict())


def fingerprint(path: Path) -> str:
    return load_backbone("tiny", weights=str(path), device="cpu").fingerprint


@pytest.fixture
def expected(state: State, tmp_path: Path) -> str:
    save_file(state, tmp_path / "plain.safetensors")
    return fingerprint(tmp_path / "plain.safetensors")


@pytest.mark.parametrize(
    "prefix", ["module.", "backbone.", "teacher.", "model.", "module.backbone.", "teacher.backbone."]
)
def test_what_stands_before_the_names_is_taken_off(state: State, expected: str, prefix: str, tmp_path: Path) -> None:
    beside = {"dino_head.mlp.weight": torch.ones(3), "student.0.bias": torch.zeros(16)}
    torch.save({prefix + key: value for key, value in state.items()} | beside, tmp_path / "weights.bin")
    assert fingerprint(tmp_path / "weights.bin") == expected


def in_parts(state: State, folder: Path, name: str) -> Path:
    """Write a state dict in two files and their index."""
    keys = sorted(state)
    names = {key: f"part-{number % 2}{'.safetensors' if 'safe' in name else '.bin'}" for number, key in enumerate(keys)}
    for part in set(names.values()):
        held = {key: state[key] for key in keys if names[key] == part}
        save_file(held, folder / part) if part.endswith("safetensors") else torch.save(held, folder / part)
    index = folder / f"{name}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return index


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_in_parts_are_read_by_their_index(state: State, expected: str, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    index = in_parts(state, folder, name)
    assert fingerprint(index) == fingerprint(folder) == expected
    (folder / "part-1.safetensors").unlink(missing_ok=True)
    (folder / "part-1.bin").unlink(missing_ok=True)
    with pytest.raises(WeightsError, match=r"names 'part-1\.\w+', which is not beside it"):
        read_state_file(index)


def test_an_index_names_files_beside_it_only(state: State, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file(state, tmp_path / "private.safetensors")
    index = folder / "model.safetensors.index.json"
    for name in ("../private.safetensors", str(tmp_path / "private.safetensors"), "private.onnx", 3):
        index.write_text(json.dumps({"weight_map": dict.fromkeys(state, name)}))
        with pytest.raises(WeightsError, match="may name files beside it only"):
            read_state_file(index)
    index.write_text("[]")
    with pytest.raises(WeightsError, match="must hold a weight_map"):
        read_state_file(index)
    save_file(state, folder / "part.safetensors")
    index.write_text(json.dumps({"weight_map": dict.fromkeys([*state, "more"], "part.safetensors")}))
    with pytest.raises(WeightsError, match="promises what no part has: more"):
        read_state_file(index)


def test_a_folder_has_one_file_of_weights(state: State, expected: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(WeightsError, match="has no weights file"):
        read_state_file(folder)
    torch.save(state, folder / "uni_weights.pth")
    assert fingerprint(folder) == expected
    torch.save(state, folder / "other.pth")
    with pytest.raises(
        WeightsError, match=r"has several weights files, name one of them: other\.pth, uni_weights\.pth"
    ):
        read_state_file(folder)
    save_file(state, folder / "model.safetensors")  # a usual name wins, and safetensors before a pickle
    (folder / "pytorch_model.bin").write_bytes(b"garbage")
    assert fingerprint(folder) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pth", b"garbage", r"a\.pth is no state dict that can be read safely"),
        ("a.safetensors", b"garbage", r"a\.safetensors is not a readable safetensors file"),
        ("a.pth", {"net": {"w": torch.ones(1)}, "epoch": 3}, "must hold a flat dict of tensors .* got keys net, epoch"),
        ("a.pth", nn.Linear(2, 2), r"a\.pth is no state dict that can be read safely"),
        ("a.pth", {"weight": torch.tensor([1.0, float("nan")])}, "has NaN or infinite values in weight"),
        ("a.pth", None, r"there is no weights file '.*a\.pth'"),
        ("a.onnx", None, r"\.safetensors, \.pth, \.pt, \.bin, \.index\.json; got .*a\.onnx"),
    ],
)
def test_what_is_no_state_dict_is_refused(name: str, content: object, message: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    with pytest.raises(WeightsError, match=message):
        read_state_file(file)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "checkpoint.pth"])
def test_a_pickle_that_needs_more_than_tensors_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (trace,)

    file = tmp_path / name
    unsafe = {"state_dict": {"weight": torch.ones(2)}, "args": Namespace(lr=0.1)}
    for save in (lambda: file.write_bytes(pickle.dumps({"weight": Evil()}, 2)), lambda: torch.save(unsafe, file)):
        save()
        with pytest.raises(WeightsError) as caught:
            read_state_file(file)
        message = str(caught.value)
        assert f"weights file {name} is no state dict that can be read safely" in message
        assert "save the network's state_dict() alone" in message
        assert "weights_only=False" not in message and "\n" not in message  # no advice to open the door
    assert not trace.exists()


@pytest.fixture(autouse=True)
def _empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    for variable in _OFFLINE:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def model_zoo() -> Iterator[tuple[str, bytes]]:
    """Serve one file on this machine, whatever the name."""
    content = b"not really weights" * 1000
    with serving(lambda method, path: (200, {}, content)) as address:
        yield address, content


def test_wrong_keys_and_shapes_are_named(state: State, tmp_path: Path) -> None:
    file = tmp_path / "tiny.pth"
    torch.save({("extra" if key == "0.bias" else key): value for key, value in state.items()}, file)
    with pytest.raises(WeightsError, match=r"file tiny\.pth do not fit .* missing: 0\.bias; 1 keys unexpected: extra"):
        load_backbone("tiny", weights=str(file), device="cpu")
    torch.save({**state, "0.bias": torch.zeros(5)}, file)
    with pytest.raises(WeightsError, match=r"size mismatch for 0\.bias"):
        load_backbone("tiny", weights=str(file), device="cpu")


def test_downloads_once_and_checks(
    model_zoo: tuple[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, content = model_zoo
    url = f"{address}/net-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    file = official_checkpoint(url)
    assert file.read_bytes() == content and [path.name for path in file.parent.iterdir()] == [file.name]
    with pytest.raises(WeightsError, match=r"net-00000000\.pth could not be downloaded \(invalid hash value"):
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
    assert "http" not in message and list(folder.iterdir()) == []


@pytest.mark.parametrize("answers", [0, 2])
def test_a_server_that_is_silent_or_falls_silent_is_given_up(answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "DOWNLOAD_TIMEOUT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:

        def answer_in_part() -> list[socket.socket]:
            kept = []
            for _ in ("HEAD", "GET")[:answers]:
                kept.append(server.accept()[0])
                kept[-1].recv(10_000)
                kept[-1].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n")
            return kept

        answered = pool.submit(answer_in_part)
        with pytest.raises(WeightsError, match=r"could not be downloaded .*timed out"):
            official_checkpoint(f"http://127.0.0.1:{server.getsockname()[1]}/resnet18-f37072fd.pth")
        for connection in answered.result():
            connection.close()
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("variable", _OFFLINE)
def test_offline_environment_is_an_error_at_once(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(weights.urllib.request, "urlopen", lambda *a, **k: pytest.fail("offline means no network"))
    with pytest.raises(WeightsError, match=rf"resnet18-f37072fd\.pth are not on this machine and {variable} forbids"):
        load_backbone("resnet18", device="cpu")
