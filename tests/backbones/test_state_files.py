"""Weights under other names, in parts, and inside what training scripts save."""

import json
import pickle
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.weights import WeightsError, read_state_file

State = dict[str, Tensor]


@pytest.fixture
def state() -> State:
    return dict(load_backbone("random:tiny", device="cpu").module.state_dict())


def fingerprint(path: Path) -> str:
    return load_backbone("tiny", weights=str(path), device="cpu").fingerprint


@pytest.fixture
def expected(state: State, tmp_path: Path) -> str:
    save_file(state, tmp_path / "plain.safetensors")
    return fingerprint(tmp_path / "plain.safetensors")


@pytest.mark.parametrize("container", ["state_dict", "model", "model_state_dict", "teacher"])
def test_a_training_checkpoint_has_the_network_inside(
    state: State, expected: str, container: str, tmp_path: Path
) -> None:
    torch.save({container: state, "epoch": 3, "optimizer": {"lr": 0.1}}, tmp_path / "checkpoint.pth")
    assert fingerprint(tmp_path / "checkpoint.pth") == expected


@pytest.mark.parametrize(
    "prefix", ["module.", "backbone.", "teacher.", "model.", "module.backbone.", "teacher.backbone."]
)
def test_what_stands_before_the_names_is_taken_off(state: State, expected: str, prefix: str, tmp_path: Path) -> None:
    beside = {"dino_head.mlp.weight": torch.ones(3), "student.0.bias": torch.zeros(16)}
    torch.save({prefix + key: value for key, value in state.items()} | beside, tmp_path / "weights.bin")
    assert fingerprint(tmp_path / "weights.bin") == expected


def test_a_prefix_is_no_excuse_for_missing_keys(state: State, tmp_path: Path) -> None:
    torch.save({f"module.{key}": value for key, value in state.items() if key != "0.bias"}, tmp_path / "weights.pth")
    with pytest.raises(WeightsError, match=r"1 keys missing: 0\.bias"):
        fingerprint(tmp_path / "weights.pth")


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
def test_weights_in_parts_are_read_by_their_index_or_folder(
    state: State, expected: str, name: str, tmp_path: Path
) -> None:
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
    index.write_text(
        json.dumps({"weight_map": {**dict.fromkeys(state, "part.safetensors"), "more": "part.safetensors"}})
    )
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


@pytest.mark.parametrize("name", ["pytorch_model.bin", "checkpoint.pth"])
def test_a_pickle_that_needs_more_than_tensors_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (trace,)

    file = tmp_path / name
    for content in ({"weight": Evil()}, {"state_dict": {"weight": torch.ones(2)}, "args": Namespace(lr=0.1)}):
        torch.save(content, file, pickle_protocol=2) if "args" in content else file.write_bytes(
            pickle.dumps(content, 2)
        )
        with pytest.raises(WeightsError) as caught:
            read_state_file(file)
        message = str(caught.value)
        assert f"weights file {name} is no state dict that can be read safely" in message
        assert "save the network's state_dict() alone" in message
        assert "weights_only=False" not in message and "\n" not in message  # no advice to open the door
    assert not trace.exists()
