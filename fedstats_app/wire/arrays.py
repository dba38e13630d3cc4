"""Tensors <-> Flower's Array, checking the .npy header before any data is touched."""

from __future__ import annotations

import math
import re

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedstats_app.wire.errors import RejectedReply

# What numpy writes for arrays without fields. numpy's own reader would evaluate the header as a Python literal, which
# strangers can make fail in a dozen ways (tokenizer and index errors among them); this needs no evaluation.
NPY_MAGIC = b"\x93NUMPY\x01\x00"
NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|=][a-zA-Z]\d{0,4})', 'fortran_order': (True|False), 'shape': \(([\d, ]{0,64})\), ?\} *\n"
)
# Flower's own header for our arrays is 128 bytes; this leaves room for other numpy versions, and no more.
MAX_HEADER_BYTES = 1024

WIRE_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def to_array(tensor: Tensor) -> Array:
    """Return a tensor as a Flower Array (C order, on the CPU)."""
    return Array(np.ascontiguousarray(tensor.detach().cpu().numpy()))


def read_array(
    record: ArrayRecord, name: str, dtype: torch.dtype, shape: tuple[int | None, ...], *, max_rows: int = 0
) -> Tensor:
    """Return one array of a record as a tensor, or refuse it.

    Parameters
    ----------
    record : ArrayRecord
        Whose keys were checked already.
    name : str
        Key in the record.
    dtype : torch.dtype
        The only one allowed.
    shape : tuple
        Allowed extent of each axis; None on the first axis means any number from 0 to ``max_rows``.
    max_rows : int
        See ``shape``.

    Raises
    ------
    RejectedReply
        If kind, header, dtype, shape or length is not as allowed.
    """
    array = record[name]
    if array.stype != "numpy.ndarray":
        raise RejectedReply(f"{name}: must be a numpy.ndarray, got {array.stype!r:.40}")
    data = array.data
    found_dtype, order, found_shape, offset = _read_header(name, data)
    wanted = torch.empty(0, dtype=dtype).numpy().dtype
    if found_dtype != wanted.str or order != "C":
        raise RejectedReply(f"{name}: must be {wanted.str} in C order, got {found_dtype} in {order} order")
    if len(found_shape) != len(shape) or any(
        extent != allowed if allowed is not None else not 0 <= extent <= max_rows
        for extent, allowed in zip(found_shape, shape, strict=True)
    ):
        wish = tuple(f"0..{max_rows}" if allowed is None else allowed for allowed in shape)
        raise RejectedReply(f"{name}: must have shape {wish}, got {found_shape!s:.80}")
    expected_bytes = math.prod(found_shape) * wanted.itemsize
    if len(data) - offset != expected_bytes:
        raise RejectedReply(f"{name}: shape {found_shape} needs {expected_bytes} bytes, got {len(data) - offset}")
    values = np.frombuffer(data, dtype=wanted, offset=offset).reshape(found_shape)
    tensor = torch.from_numpy(values.copy())
    if dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        raise RejectedReply(f"{name}: must be finite, got NaN or infinity")
    return tensor


def _read_header(name: str, data: bytes) -> tuple[str, str, tuple[int, ...], int]:
    """Return dtype, order ("C" or "Fortran"), shape and where the values start."""
    if data[: len(NPY_MAGIC)] != NPY_MAGIC:
        raise RejectedReply(f"{name}: must be an .npy array, version 1.0, got data that starts with {data[:8]!r}")
    start = len(NPY_MAGIC) + 2
    offset = start + int.from_bytes(data[len(NPY_MAGIC) : start], "little")
    header = NPY_HEADER.fullmatch(data, start, offset) if offset <= min(len(data), start + MAX_HEADER_BYTES) else None
    if header is None:
        raise RejectedReply(f"{name}: must have the .npy header of a plain array, got {data[start : start + 60]!r}")
    shape = tuple(int(extent) for extent in header[3].replace(b" ", b"").split(b",") if extent)
    return header[1].decode(), "Fortran" if header[2] == b"True" else "C", shape, offset


def check_keys(what: str, found: object, required: set[str], optional: frozenset[str] = frozenset()) -> None:
    """Refuse a mapping whose keys are not exactly the required ones, give or take the optional ones.

    Raises
    ------
    RejectedReply
        Naming missing and unexpected keys.
    """
    keys = set(found)  # type: ignore[call-overload]  # any mapping of Flower's
    missing, unexpected = required - keys, keys - required - optional
    if missing or unexpected:
        raise RejectedReply(
            f"{what}: must have the keys {sorted(required)}, "
            f"missing {sorted(missing)}, unexpected {[str(key)[:40] for key in sorted(unexpected)[:5]]}"
        )
