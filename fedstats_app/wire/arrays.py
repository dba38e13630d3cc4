"""Tensors <-> Flower's Array, checking the .npy header before any data is touched."""

from __future__ import annotations

import functools
import io
import math
import re
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from torch import Tensor

from fedstats_app.wire.reading import Malformed, record_of

# What numpy writes for arrays without fields. numpy's own reader would evaluate the header as a Python literal, which
# strangers can make fail in a dozen ways (tokenizer and index errors among them); this needs no evaluation.
NPY_MAGIC = b"\x93NUMPY\x01\x00"
NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|=][a-zA-Z]\d{0,4})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,64})\), ?\} *\n"
)
# Flower's own header for our arrays is 128 bytes; this leaves room for other numpy versions, and no more.
MAX_HEADER_BYTES = 1024

WIRE_DTYPES = {"float64": torch.float64, "float32": torch.float32}
# Of statistics, with a scale per row for the last two; and the bytes of a number.
NUMBER_DTYPES = {**WIRE_DTYPES, "float16": torch.float16, "int8": torch.int8}
NUMBER_BYTES = {kind: dtype.itemsize for kind, dtype in NUMBER_DTYPES.items()}
# No network's features have more dimensions.
MAX_FEATURE_DIM = 100_000


def to_array(tensor: Tensor) -> Array:
    """Write a tensor as a Flower Array, in C order."""
    values = np.asarray(tensor.detach().cpu().numpy(), order="C")  # ascontiguousarray gives a scalar an axis
    data = b"".join((_npy_header(values.dtype, values.shape), values.data))
    return Array(str(values.dtype), values.shape, "numpy.ndarray", data)


@functools.lru_cache(maxsize=1024)
def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return what numpy writes before the values: for small arrays that takes longer than all else."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Write tensors by name as a record, in the order given."""
    return ArrayRecord({name: to_array(tensor) for name, tensor in tensors.items()})


def to_tensors(arrays: ArrayRecord) -> dict[str, Tensor]:
    """Read the tensors of a record of this process's own; what a stranger sent is for :func:`read_tensors`."""
    return {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}


def read_tensors(content: RecordDict, name: str, *dtypes: torch.dtype) -> dict[str, Tensor]:
    """Read all tensors of one of a message's records, of any names and shapes, each of one of these dtypes."""
    record = record_of(content, name, ArrayRecord)
    return {key: _values(key, array, *_read_header(key, array, dtypes)) for key, array in record.items()}


def read_array(
    record: ArrayRecord, name: str, dtype: torch.dtype, shape: tuple[int | range, ...], *, finite: bool = True
) -> Tensor:
    """Read one array of a record as a tensor of this dtype and these extents; with ``finite`` without NaN and infinity.

    Raises
    ------
    Malformed
        If it is missing, or kind, header, dtype, shape or length is not as allowed.
    """
    if name not in record:
        raise Malformed(f"{name}: is missing")
    found_dtype, found, offset = _read_header(name, record[name], (dtype,))
    if len(found) != len(shape) or any(
        extent not in allowed if isinstance(allowed, range) else extent != allowed
        for extent, allowed in zip(found, shape, strict=True)
    ):
        wish = tuple(f"{size.start}..{size.stop - 1}" if isinstance(size, range) else size for size in shape)
        raise Malformed(f"{name}: must have shape {wish}, got {found!s:.80}")
    return _values(name, record[name], found_dtype, found, offset, finite=finite)


def _read_header(name: str, array: Array, dtypes: tuple[torch.dtype, ...]) -> tuple[np.dtype, tuple[int, ...], int]:
    """Read dtype, shape and where the values start."""
    if array.stype != "numpy.ndarray":
        raise Malformed(f"{name}: must be a numpy.ndarray, got {array.stype!r:.40}")
    data = array.data
    if data[: len(NPY_MAGIC)] != NPY_MAGIC:
        raise Malformed(f"{name}: must be an .npy array, version 1.0, got data that starts with {data[:8]!r}")
    start = len(NPY_MAGIC) + 2
    offset = start + int.from_bytes(data[len(NPY_MAGIC) : start], "little")
    header = data[start:offset]
    found = NPY_HEADER.fullmatch(header) if offset <= min(len(data), start + MAX_HEADER_BYTES) else None
    if found is None:
        raise Malformed(f"{name}: must have the .npy header of a plain array, got {header[:60]!r}")
    dtype, order = found[1].decode(), "Fortran" if found[2] == b"True" else "C"
    wanted = _numpy_dtypes(dtypes)
    if dtype not in wanted or order != "C":
        raise Malformed(f"{name}: must be {' or '.join(wanted)} in C order, got {dtype} in {order} order")
    shape = tuple(int(extent) for extent in found[3].replace(b" ", b"").split(b",") if extent)
    return wanted[dtype], shape, offset


@functools.cache
def _numpy_dtypes(dtypes: tuple[torch.dtype, ...]) -> dict[str, np.dtype]:
    """List numpy's dtypes for torch's by what a header calls them."""
    found = [torch.empty(0, dtype=dtype).numpy().dtype for dtype in dtypes]
    return {dtype.str: dtype for dtype in found}


def _values(
    name: str, array: Array, dtype: np.dtype, shape: tuple[int, ...], offset: int, *, finite: bool = True
) -> Tensor:
    """Read the values behind a header, as many as its shape needs."""
    expected, found = math.prod(shape) * dtype.itemsize, len(array.data) - offset
    if found != expected:
        raise Malformed(f"{name}: shape {shape!s:.80} needs {expected} bytes, got {found}")
    values = np.frombuffer(array.data, dtype=dtype, offset=offset).reshape(shape).copy()
    if finite and dtype.kind == "f" and not np.isfinite(values).all():
        raise Malformed(f"{name}: must be finite, got NaN or infinity")
    return torch.from_numpy(values)
