"""State dicts from files: one file or several, plain or inside a training checkpoint; only tensors are unpickled."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedstats_app.backbones.weights import WeightsError, some

_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
_INDEX_SUFFIX = ".index.json"
# Of a folder, in this order: safetensors before pickles, whole files before those in parts.
_USUAL_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "pytorch_model.pth",
    "model.pth",
)
# Where training scripts put the network in what they save, in the order of preference: DINO's teacher is its result.
_CONTAINERS = ("state_dict", "model", "model_state_dict", "teacher")


def read_state_file(path: str | Path) -> dict[str, Tensor]:
    """Read a state dict from local files, without unpickling anything but tensors.

    Parameters
    ----------
    path : str or Path
        A ``.safetensors`` file; a ``.pth``, ``.pt`` or ``.bin`` file with a state dict, or with one under the key
        ``state_dict``, ``model``, ``model_state_dict`` or ``teacher``; an ``.index.json`` that names the parts of
        either; or a folder that holds one of them.

    Returns
    -------
    dict of str to Tensor
        On the CPU, in the file's order.

    Raises
    ------
    WeightsError
        If there is no such file, its suffix is another, or it holds no state dict of finite tensors.
    """
    file = Path(path).expanduser().absolute()
    file = _in_folder(file) if file.is_dir() else file
    if not file.name.endswith((*_SUFFIXES, _INDEX_SUFFIX)):
        raise WeightsError(f"a weights file ends in {', '.join((*_SUFFIXES, _INDEX_SUFFIX))}; got {str(file)!r}")
    if not file.is_file():
        raise WeightsError(f"there is no weights file {str(file)!r}")
    state = _read_parts(file) if file.name.endswith(_INDEX_SUFFIX) else _read(file)
    broken = [key for key, value in state.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if broken:
        raise WeightsError(f"weights file {file.name} has NaN or infinite values in {some(broken)}")
    return state


def _in_folder(folder: Path) -> Path:
    """Return the one file of weights in a folder."""
    for name in _USUAL_FILES:
        if (folder / name).is_file():
            return folder / name
    for suffix in _SUFFIXES:
        found = sorted(folder.glob(f"*{suffix}"))
        if len(found) > 1:
            names = some([file.name for file in found])
            raise WeightsError(f"folder {str(folder)!r} has several weights files, name one of them: {names}")
        if found:
            return found[0]
    raise WeightsError(f"folder {str(folder)!r} has no weights file: none ends in {', '.join(_SUFFIXES)}")


def _read(file: Path) -> dict[str, Tensor]:
    return _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)


def _read_parts(index: Path) -> dict[str, Tensor]:
    """Read the parts that an index names; they lie beside it."""
    try:
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        parts = sorted(set(named.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"weights file {index.name} must hold a weight_map from keys to files: {error!r}") from error
    for part in parts:
        if not isinstance(part, str) or Path(part).name != part or not part.endswith(_SUFFIXES):
            raise WeightsError(f"weights file {index.name} may name files beside it only, got {part!r}")
        if not (index.parent / part).is_file():
            raise WeightsError(f"weights file {index.name} names {part!r}, which is not beside it")
    state: dict[str, Tensor] = {}
    for part in parts:
        state.update(_read(index.parent / part))
    if lacking := [str(key) for key in named if key not in state]:
        raise WeightsError(f"weights file {index.name} promises what no part has: {some(lacking)}")
    return state


def _read_torch(file: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        # Its first line: the rest advises to load the file unsafely.
        reason = str(error).partition("\n")[0]
        raise WeightsError(
            f"weights file {file.name} is no state dict that can be read safely ({reason}). Only tensors are read from "
            "a pickle, as anything else could run code: save the network's state_dict() alone, best as .safetensors"
        ) from error
    state = _network_of(loaded)
    if state is None:
        held = f"keys {some([str(key) for key in loaded])}" if isinstance(loaded, Mapping) else type(loaded).__name__
        raise WeightsError(
            f"weights file {file.name} must hold a flat dict of tensors (a state dict), or one under "
            f"{', '.join(_CONTAINERS)}; got {held}"
        )
    return state


def _network_of(loaded: object) -> dict[str, Tensor] | None:
    """Return the state dict that was loaded, from its container if there is one; None if there is none."""
    if not isinstance(loaded, Mapping) or not loaded:
        return None
    if all(isinstance(value, Tensor) for value in loaded.values()):
        return {str(key): value for key, value in loaded.items()}
    inner = (_network_of(loaded[name]) for name in _CONTAINERS if name in loaded)
    return next((state for state in inner if state is not None), None)


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file, device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"weights file {file.name} cannot be read as safetensors: {error}") from error
