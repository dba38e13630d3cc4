import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from fedstats_app.base.files import tensors_to_bytes
from fedstats_app.heads import LinearHead
from fedstats_app.report.head_file import HEAD_FORMAT, head_to_bytes, read_head


def _head(num_classes: int = 4, dim: int = 3, absent: tuple[int, ...] = (), bias: float = 0.0) -> LinearHead:
    generator = torch.Generator().manual_seed(num_classes * 100 + dim)
    weight = torch.randn(num_classes, dim, generator=generator, dtype=torch.float64)
    present = torch.ones(num_classes, dtype=torch.bool)
    biases = torch.randn(num_classes, generator=generator, dtype=torch.float64)
    for index in absent:
        weight[index], present[index], biases[index] = 0.0, False, bias
    return LinearHead(weight=weight, bias=biases, present=present)


@given(
    st.integers(1, 6),
    st.integers(1, 9),
    st.dictionaries(st.text(max_size=8).filter(lambda key: key != "format"), st.text(max_size=20), max_size=6),
    st.booleans(),
)
def test_a_head_comes_back_in_float32_with_its_metadata(
    tmp_path_factory: pytest.TempPathFactory, num_classes: int, dim: int, metadata: dict[str, str], reverse: bool
) -> None:
    head = _head(num_classes, dim)
    content = head_to_bytes(head, metadata)
    if reverse:
        metadata = dict(reversed(metadata.items()))
    assert head_to_bytes(head, metadata) == content
    path = tmp_path_factory.getbasetemp() / "head.safetensors"
    path.write_bytes(content)
    back, header = read_head(path)
    assert header == {**metadata, "format": HEAD_FORMAT} and back.weight.dtype == back.bias.dtype == torch.float64
    assert torch.equal(back.weight, head.weight.to(torch.float32).to(torch.float64))
    assert torch.equal(back.bias, head.bias.to(torch.float32).to(torch.float64))
    assert torch.equal(back.present, head.present)


def test_minus_infinity_of_an_absent_class_survives(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    path.write_bytes(head_to_bytes(_head(absent=(1,), bias=-torch.inf), {}))
    back, _ = read_head(path)
    assert back.bias[1] == -torch.inf and back.present.tolist() == [True, False, True, True]
    assert back.predict(torch.zeros(1, 3)).item() != 1


def test_other_programs_can_read_the_file() -> None:
    content = head_to_bytes(_head(), {"method": "fed3r"})
    tensors = load(content)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()} == {
        "weight": (torch.float32, (4, 3)),
        "bias": (torch.float32, (4,)),
        "present": (torch.uint8, (4,)),
    }
    header_length = int.from_bytes(content[:8], "little")
    assert header_length % 8 == 0
    metadata = json.loads(content[8 : 8 + header_length])["__metadata__"]
    assert len(metadata.pop("sha256")) == 64 and metadata == {"format": HEAD_FORMAT, "method": "fed3r"}


def test_saving_refuses_what_float32_cannot_hold() -> None:
    huge = LinearHead(weight=torch.full((2, 2), 1e300, dtype=torch.float64), bias=torch.zeros(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="every weight must be finite in float32"):
        head_to_bytes(huge, {})
    head = _head(absent=(2,), bias=torch.inf)
    with pytest.raises(ValueError, match=r"but those of classes \[2\] are \[inf\]"):
        head_to_bytes(head, {})


@pytest.mark.parametrize(
    "change",
    [
        {"bias": torch.zeros(3)},
        {"weight": torch.zeros(2, 2, dtype=torch.float64)},
        {"weight": torch.zeros(2)},
        {"present": torch.ones(2, dtype=torch.int64)},
        {"extra": torch.zeros(1)},
    ],
)
def test_reading_refuses_tensors_of_another_shape_or_type(tmp_path: Path, change: dict[str, torch.Tensor]) -> None:
    path = tmp_path / "head.safetensors"
    tensors = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "present": torch.ones(2, dtype=torch.uint8)}
    path.write_bytes(tensors_to_bytes({**tensors, **change}, {"format": HEAD_FORMAT}, digest=True))
    with pytest.raises(ValueError, match=r"a head holds weight \(C, d\) float32"):
        read_head(path)
