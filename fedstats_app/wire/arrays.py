"""Tensors <-> Flower's Array, checking the .npy header before any data is touched."""

from __future__ import annotations

import io

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from torch import Tensor

from fedstats_app.wire.errors import RejectedReply

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
    stream = io.BytesIO(data[: MAX_HEADER_BYTES + 16])
    try:
        version = npy.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"version {version}")
        found_shape, fortran_order, found_dtype = npy.read_array_header_1_0(stream, max_header_size=MAX_HEADER_BYTES)
    except (ValueError, TypeError, SyntaxError) as error:
        raise RejectedReply(f"{name}: not an .npy array ({error!s:.80})") from None
    wanted = torch.empty(0, dtype=dtype).numpy().dtype
    if found_dtype != wanted or fortran_order:
        order = " in Fortran order" if fortran_order else ""
        raise RejectedReply(f"{name}: must be {wanted} in C order, got {found_dtype!s:.40}{order}")
    if len(found_shape) != len(shape) or any(
        extent != allowed if allowed is not None else not 0 <= extent <= max_rows
        for extent, allowed in zip(found_shape, shape, strict=True)
    ):
        wish = tuple(f"0..{max_rows}" if allowed is None else allowed for allowed in shape)
        raise RejectedReply(f"{name}: must have shape {wish}, got {found_shape!s:.80}")
    expected_bytes = int(np.prod(found_shape, dtype=object)) * wanted.itemsize
    if len(data) - stream.tell() != expected_bytes:
        raise RejectedReply(
            f"{name}: shape {found_shape} needs {expected_bytes} bytes, got {len(data) - stream.tell()}"
        )
    values = np.frombuffer(data, dtype=wanted, offset=stream.tell()).reshape(found_shape)
    tensor = torch.from_numpy(values.copy())
    if dtype.is_floating_point and not bool(torch.isfinite(tensor).all()):
        raise RejectedReply(f"{name}: must be finite, got NaN or infinity")
    return tensor


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
