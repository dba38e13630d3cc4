import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from fedstats_app.backbones.weights import WeightsError, read_state_file
from fedstats_app.base.files import read_tensors, remove_unfinished, tensors_to_bytes, write_tensors
from tests.support.damage import flipped

_TENSORS = {"a": torch.tensor([1.0, -0.0, torch.nan, torch.inf])}
_TENSORS |= {"b": torch.tensor([[2**-1074, 1 / 3]], dtype=torch.float64), "c": torch.tensor(2**62 + 1)}
_TENSORS |= {"d": torch.tensor([True, False]), "e": torch.zeros(0, 3)}


def _bits(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return tensor.dtype, tuple(tensor.shape), tensor.contiguous().numpy().tobytes()


def test_tensors_come_back_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    path.write_bytes(tensors_to_bytes(_TENSORS, {"key": "värde"}, digest=True))
    back, metadata = read_tensors(path)
    assert {name: _bits(tensor) for name, tensor in back.items()} == {
        name: _bits(tensor) for name, tensor in _TENSORS.items()
    }
    assert metadata == {"key": "värde"}
    assert set(load(path.read_bytes())) == set(_TENSORS)  # other programs can read it


@given(st.permutations(sorted(_TENSORS)), st.permutations(["x", "y", "z"]))
def test_order_does_not_change_the_bytes(names: list[str], keys: list[str]) -> None:
    again = tensors_to_bytes({name: _TENSORS[name] for name in names}, {key: key for key in keys}, digest=True)
    assert again == tensors_to_bytes(_TENSORS, {"x": "x", "y": "y", "z": "z"}, digest=True)


def test_the_layout_is_that_of_safetensors_own_writer() -> None:
    dtypes = ("bool", "uint8", "int8", "int16", "float16", "bfloat16", "int32", "float32", "complex64", "float64")
    dtypes += ("int64",)
    tensors = {f"{9 - i}é{name}": torch.ones(i + 1, 2).to(getattr(torch, name)) for i, name in enumerate(dtypes)}
    found = []
    for content in (tensors_to_bytes(tensors, {"key": "value"}), save(tensors, {"key": "value"})):
        end = 8 + int.from_bytes(content[:8], "little")
        found.append((json.loads(content[8:end]), content[end:]))
    assert found[0] == found[1]


def test_tied_transposed_and_strided_tensors_are_written_as_they_look(tmp_path: Path) -> None:
    weight = torch.arange(24.0).reshape(1, 2, 3, 4)
    tensors = {"one": weight, "tied": weight, "transposed": weight[0, 0].T}
    tensors |= {"last": weight.to(memory_format=torch.channels_last), "trained": torch.nn.Parameter(weight)}
    path = tmp_path / "file.safetensors"
    path.write_bytes(tensors_to_bytes(tensors, {}, digest=True))
    back, _ = read_tensors(path)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_one_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    content = tensors_to_bytes({"weight": torch.arange(5.0)}, {"round": "7", "note": "x"}, digest=True)
    for damaged in flipped(content, step=7):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read_tensors(path)


def test_a_file_without_a_digest_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    path.write_bytes(tensors_to_bytes(_TENSORS, {"format": "old"}))
    with pytest.raises(ValueError, match="is damaged: its header has no sha256"):
        read_tensors(path)


_ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "header",
    [
        None,
        [],
        {"__metadata__": None, "a": _ONE},
        {"a": {"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}},
        {"a": _ONE, "b": {"dtype": "F32", "shape": [2**63, 0], "data_offsets": [4, 4]}},
    ],
)
def test_what_is_no_such_file_is_named(tmp_path: Path, header: object) -> None:
    path = tmp_path / "file.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(b"short" if header is None else len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(ValueError, match=r"file\.safetensors is (not a readable safetensors file|damaged)"):
        read_tensors(path)
    if header != {"__metadata__": None, "a": _ONE}:  # of others' weights nobody needs the metadata
        with pytest.raises(WeightsError, match=r"file\.safetensors is not a readable safetensors file"):
            read_state_file(path)


_NAMES = st.text(st.characters(blacklist_categories=("Cs",)), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(metadata=st.dictionaries(_NAMES.filter(lambda name: name != "sha256"), _NAMES, max_size=3))
def test_a_file_written_in_place_has_the_same_bytes(tmp_path: Path, metadata: dict[str, str]) -> None:
    path = tmp_path / "file.safetensors"
    write_tensors(path, _TENSORS, metadata, mode=0o600)
    assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == tensors_to_bytes(_TENSORS, metadata, digest=True) and read_tensors(path)[1] == metadata


def test_what_a_killed_writer_left_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".folder.7-8.tmp").mkdir()  # made by a person, whatever it is called
    for name in (".file.7-8.tmp", "deep/.file.safetensors.7-8.tmp", "deep/kept.tmp", ".tmp-of-a-person"):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert {one.name for one in tmp_path.rglob("*")} == {"deep", "kept.tmp", ".tmp-of-a-person", ".folder.7-8.tmp"}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of memory from /proc")
def test_large_tensors_take_little_more_memory(tmp_path: Path) -> None:
    program = """
from pathlib import Path
import torch
from research.benchmarks.memory import with_peak_memory
from fedstats_app.base.files import write_tensors
write_tensors(Path("small"), {"a": torch.zeros(3)}, {})  # imports
rows = torch.rand(6_000_000)  # 24 MB
print(with_peak_memory(lambda: write_tensors(Path("file"), {"rows": rows}, {}))[1])
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
    )
    assert float(done.stdout) < 8
