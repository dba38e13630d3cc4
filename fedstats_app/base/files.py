"""Files that a crash leaves old or new, never half: bytes, lines, strict JSON, tensors with a header of strings.

Tensors are the bytes of one safetensors file, the same bytes for the same content. Torch is imported when it is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_logger = logging.getLogger("fedstats_app")
# On Windows a file cannot be replaced while it is read: seconds to wait before another try.
PAUSES_FOR_READERS = (0.01, 0.05, 0.2, 1.0) if os.name == "nt" else ()
_DIGEST, _METADATA = "sha256", "__metadata__"
_BLOCK = 4096
_UNFINISHED = re.compile(r"\..+\.\d+-\d+\.tmp")
# Of tensors, in the order in which safetensors' own writer puts them, from the last to the first.
_DTYPES = ("BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64")


def write_atomically(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace the file at `path`, whose folder must exist, by `data`, or leave it as it was.

    The bytes go to a temporary file in the same folder, are forced to disk, and then take the name in one step. The
    file has the permissions `mode`, less what the process's umask takes away: 0o600 for what only its owner may read.

    Raises
    ------
    OSError
        If the file cannot be written. The old file, if there was one, is untouched and no temporary file stays.
    """
    _write(path, [data], mode)


def _write(path: Path, blocks: Iterable[bytes | memoryview], mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        # Not `tempfile`, which makes every file readable by its owner only. The file has its mode from the beginning.
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode), "wb") as file:
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        _replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _name(error, path)
        raise


def _replace(new: Path, path: Path) -> None:
    for pause in PAUSES_FOR_READERS:
        with suppress(PermissionError):
            new.replace(path)
            return
        time.sleep(pause)
    new.replace(path)


def _name(error: BaseException, path: Path) -> None:
    """Let an error of the system say which file it is about: a full disk's does not."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)


def remove_unfinished(folder: Path) -> None:
    """Delete what `write_atomically` and `write_tensors` left in a folder, at any depth, when its process was killed.

    Only for the folder's only user.
    """
    for path in folder.rglob(".*tmp*"):
        if _UNFINISHED.fullmatch(path.name) and not path.is_dir():
            path.unlink(missing_ok=True)


def append_lines(path: Path, *lines: str, forced: bool = True) -> None:
    """Append lines, without line breaks in them, to a text file, which is made if there is none; force them to disk.

    Not ``forced``, it is left to the system when they reach the disk, which is milliseconds faster: what survives the
    process may not survive the machine. What a crash or a full disk left of an earlier line is cut off before, and so
    is what this call could not finish.
    """
    data = "".join(f"{line}\n" for line in lines).encode("utf-8")
    # Without a buffer: what a buffer holds of a write that failed would be written once more when the file is closed.
    with path.open("a+b", buffering=0) as file:
        end = _end_of_lines(file)
        if end < file.seek(0, os.SEEK_END):
            file.truncate(end)
        try:
            # One write of the whole, so that a reader never sees the two halves of a line apart.
            written = file.write(data)
            while written < len(data):
                written += file.write(data[written:])
            if forced:
                os.fsync(file.fileno())
        except BaseException as error:
            file.truncate(end)
            _name(error, path)
            raise


def _end_of_lines(file: FileIO) -> int:
    """Return how many bytes of a file are whole lines; leaves the position somewhere."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(end - _BLOCK, 0)
        file.seek(start)
        if (found := file.read(end - start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0


def to_json(value: object, *, indent: int | None = 2) -> str:
    """Write a value as strict JSON, the same text for the same value, without a final line break.

    JSON has no word for numbers that are not finite: NaN (no value) becomes `null`, and the infinities become the
    strings `"inf"` and `"-inf"`, which Python's `float` reads back. Keys keep their order; a path becomes a string.
    There may be mappings with string keys, sequences, strings, numbers (also NumPy's), bool, None and paths, nested at
    will. Without an `indent` it is one line.

    Raises
    ------
    TypeError
        If something in `value` has no JSON form; the message says where.
    """
    return json.dumps(_plain(value, "$"), indent=indent, ensure_ascii=False, allow_nan=False)


def read_json_file(path: Path) -> dict[str, Any]:
    """Read a file with one JSON object; ValueError, which names the file, if it holds anything else."""
    return _read_object(path.read_bytes(), str(path))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with a JSON object in each line; a last line that a crash cut off is left out, with a warning.

    Raises
    ------
    ValueError
        If any other line is no JSON object; the message has its number.
    """
    *lines, last = path.read_bytes().split(b"\n")
    if last:
        _logger.warning("%s: line %d was cut off and is left out", path, len(lines) + 1)
    return [_read_object(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _read_object(text: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:  # of UTF-8 too
        raise ValueError(f"{where} is damaged: it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{where} is damaged: it must be a JSON object, got {type(found).__name__}")
    return found


def _plain(value: object, where: str) -> object:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (float, Real)):
        if isinstance(value, Integral):
            return int(value)
        number = float(value)
        return None if math.isnan(number) else number if math.isfinite(number) else str(number)
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(
        f"cannot write {where} as JSON: allowed are mappings, sequences, strings, numbers, bool, None and paths, "
        f"got {type(value).__name__}"
    )


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"cannot write {where} as JSON: keys must be strings, got {key!r} ({type(key).__name__})")
    return key


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, digest: bool = False) -> bytes:
    """Serialise tensors of any dtype and their metadata as a safetensors file, whatever the order of either.

    They may be on any device and share memory, which the file does not. A `digest` is an entry `sha256` over everything
    else in the file, which `read_tensors` checks.
    """
    return b"".join(_blocks(tensors, metadata, digest=digest))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, mode: int = 0o666) -> None:
    """Replace a file as :func:`write_atomically` does, by what :func:`tensors_to_bytes` gives, with a digest.

    None of the bytes are in memory twice: for statistics of many clients.
    """
    _write(path, _blocks(tensors, metadata, digest=True), mode)


def _blocks(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, digest: bool
) -> Iterator[bytes | memoryview]:
    """Yield the header of a safetensors file and then the data of each tensor, without a copy of them."""
    import torch

    header: dict[str, Any] = {_METADATA: dict(metadata)}
    blocks: list[memoryview] = []
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-_DTYPES.index(_code(item[1])), item[0])):
        numbers = tensor.detach().to("cpu").contiguous()
        flat = numbers.reshape(-1)
        if flat.stride(0) != 1:  # one number may have a stride of 0
            flat = flat.clone(memory_format=torch.contiguous_format)
        blocks.append(flat.view(torch.uint8).numpy().data)
        start, end = end, end + blocks[-1].nbytes
        header[name] = {"dtype": _code(tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    if digest:
        header[_METADATA][_DIGEST] = _digest(header, blocks)
    text = _canonical(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    yield from blocks


def _code(tensor: Tensor) -> str:
    """Name a dtype as safetensors does: F32, BF16, I64."""
    name = str(tensor.dtype).removeprefix("torch.").replace("bfloat", "BF").replace("bool", "BOOL")
    return name.replace("float", "F").replace("complex", "C").replace("uint", "U").replace("int", "I")


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file whole: tensors by name, in order, on the CPU, and the metadata without the digest.

    Raises
    ------
    ValueError
        If it is no safetensors file, or lacks the digest of its content.
    """
    content = path.read_bytes() if path.is_file() else b""
    tensors = load_safetensors(path, content)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    metadata: dict[str, str] = header.get(_METADATA) or {}
    expected = metadata.pop(_DIGEST, None)
    if expected is None:
        raise ValueError(f"{path} is damaged: its header has no {_DIGEST}")
    if _digest(header, [memoryview(content)[end:]]) != expected:
        raise ValueError(f"{path} is damaged: its content does not have the sha256 in its header")
    return tensors, metadata


@contextmanager
def refusing_others(path: Path, content: str) -> Iterator[None]:
    """Make one ValueError, which says that a file does not hold this, of all that entries of another kind cause."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold {content}: {type(error).__name__}: {error!s:.300}") from error


def load_safetensors(path: Path, content: bytes | None = None) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file by name, in order, on the CPU; of its ``content`` where that was read.

    Raises
    ------
    ValueError
        If it is no such file, or has a dtype that :func:`tensors_to_bytes` does not write, such as F8 and F4.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    try:
        tensors: dict[str, Tensor] = load_file(path) if content is None else load(content)
        if others := {_code(tensor) for tensor in tensors.values()} - {*_DTYPES}:
            raise TypeError(f"dtypes must be among {', '.join(_DTYPES)}, got {', '.join(sorted(others))}")
    # safetensors' own error, and those of torch about dtypes and shapes that it does not have.
    except (SafetensorError, OSError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    return dict(sorted(tensors.items()))  # safetensors gives them in any order


def _digest(header: Mapping[str, Any], blocks: Iterable[memoryview]) -> str:
    found = hashlib.sha256(_canonical(header))
    for block in blocks:
        found.update(block)
    return found.hexdigest()


def _canonical(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
