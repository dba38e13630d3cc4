"""Tensors with a header of strings as the bytes of one safetensors file, the same bytes for the same content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

_DIGEST = "sha256"


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, digest: bool = False) -> bytes:
    """Serialise tensors of any dtype and their metadata, whatever the order of either.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        On any device; they may share memory, which the file does not.
    metadata : mapping of str to str
        The header's entries.
    digest : bool
        Whether to add an entry `sha256` over everything else in the file, which `read_tensors` then checks.

    Returns
    -------
    bytes
        Content of a safetensors file.

    Raises
    ------
    TypeError
        If a key or a value of `metadata` is not a string.
    """
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must be strings, got {key!r}: {value!r} ({type(value).__name__})")
    # Copies, because safetensors refuses tensors that share memory, as tied weights and views do.
    own = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in sorted(tensors.items())}
    header, data = _parts(save(own, dict(metadata)))
    if digest:
        header.setdefault("__metadata__", {})[_DIGEST] = _digest(header, data)
    # Sorted: safetensors writes the metadata in a different order in every call. The offsets in the header count from
    # its end, so it may change its length.
    text = _canonical(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file whole.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    tensors : dict of str to Tensor
        On the CPU, in the file's dtypes.
    metadata : dict of str to str
        The header's entries, without the digest.

    Raises
    ------
    ValueError
        If it is no safetensors file, or its digest, where it has one, is not that of its content.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    expected = metadata.pop(_DIGEST, None)
    if expected is not None:
        header, data = _parts(path.read_bytes())
        del header["__metadata__"][_DIGEST]
        if _digest(header, data) != expected:
            raise ValueError(f"{path} is damaged: its content does not have the sha256 in its header")
    return tensors, metadata


def _parts(file: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(file[:8], "little")
    return json.loads(file[8:end]), file[end:]


def _digest(header: Mapping[str, Any], data: bytes) -> str:
    found = hashlib.sha256(_canonical(header))
    found.update(data)
    return found.hexdigest()


def _canonical(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
