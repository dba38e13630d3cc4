"""Loading of weights from files into a network, and downloads that fail with advice; only tensors are unpickled."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedstats_app.backbones.architecture import Architecture
from fedstats_app.base.files import load_safetensors
from fedstats_app.base.listing import first_few

logger = logging.getLogger("fedstats_app")

# What training scripts put before a network's names: one of them or several, and what this app does round a network.
_PREFIXES = ("module.", "backbone.", "teacher.", "model.", "network.")
DOWNLOAD_TIMEOUT_SECONDS = 20.0
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
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


class WeightsError(RuntimeError):
    """Weights cannot be had or do not fit: the message says which file, what was expected and what to do."""


def load_strictly(module: nn.Module, state: Mapping[str, Tensor], architecture: Architecture, *, source: str) -> None:
    """Load a state dict from ``source`` into a network as the architecture builds it; every key must fit.

    Those of the classifier, which the network has not, are left out, and so is what a training script saved beside the
    network. What it put before the network's names (``module.``, ``teacher.backbone.``) is taken off.

    Raises
    ------
    WeightsError
        Naming missing keys, unexpected keys or tensors of another shape.
    """
    own = module.state_dict()
    prefix = _prefix(state, {*own}, architecture.rename_key)
    inner = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
    if len(inner) < len(state):
        beside = [key for key in state if not key.startswith(prefix)]
        logger.info("weights from %s: of %r; left out beside it: %s", source, prefix, first_few(beside))
    dropped = architecture.classifier_prefixes
    # A plain dict carries no version, so that modules accept the layouts of their older files too (BatchNorm without a
    # step counter, torchvision's first vision transformers).
    trunk = {architecture.rename_key(key): value for key, value in inner.items() if not key.startswith(dropped)}
    fits = trunk.keys() == own.keys() and all(trunk[key].shape == value.shape for key, value in own.items())
    load_exactly(module, trunk if fits else architecture.convert(trunk, source), source=source)


def _prefix(state: Mapping[str, Tensor], own: set[str], rename: Callable[[str], str]) -> str:
    """Find the prefix of most keys of the network, "" if there is none."""
    found = {""}
    for key in state:
        prefix = ""
        while segment := next((entry for entry in _PREFIXES if key.startswith(prefix + entry)), ""):
            prefix += segment
            found.add(prefix)
    fitting = {p: sum(k.startswith(p) and rename(k.removeprefix(p)) in own for k in state) for p in found}
    return min(found, key=lambda entry: (-fitting[entry], len(entry)))


def load_exactly(module: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Load a state dict of which every key must fit, and none may be missing; errors as of :func:`load_strictly`."""
    try:
        missing, unexpected = module.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:  # tensors of another shape
        raise WeightsError(f"weights from {source} do not fit the backbone: {error}") from error
    problems = {"missing": missing, "unexpected": unexpected}
    named = [f"{len(keys)} keys {problem}: {first_few(keys)}" for problem, keys in problems.items() if keys]
    if named:
        raise WeightsError(f"weights from {source} do not fit the backbone: {'; '.join(named)}")


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
    state = _read_parts(file) if file.name.endswith(_INDEX_SUFFIX) else _read_whole(file)
    broken = [
        key for key, value in state.items() if value.is_floating_point() and not bool(value.flatten().isfinite().all())
    ]
    if broken:
        raise WeightsError(f"weights file {file.name} has NaN or infinite values in {first_few(broken)}")
    return state


def _in_folder(folder: Path) -> Path:
    """Return the one file of weights in a folder."""
    for name in _USUAL_FILES:
        if (folder / name).is_file():
            return folder / name
    for suffix in _SUFFIXES:
        found = sorted(folder.glob(f"*{suffix}"))
        if len(found) > 1:
            names = first_few(file.name for file in found)
            raise WeightsError(f"folder {str(folder)!r} has several weights files, name one of them: {names}")
        if found:
            return found[0]
    raise WeightsError(f"folder {str(folder)!r} has no weights file: none ends in {', '.join(_SUFFIXES)}")


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
        state.update(_read_whole(index.parent / part))
    if lacking := [str(key) for key in named if key not in state]:
        raise WeightsError(f"weights file {index.name} promises what no part has: {first_few(lacking)}")
    return state


def _read_whole(file: Path) -> dict[str, Tensor]:
    """Read one file: by safetensors, or the tensors of a pickle."""
    if file.suffix == ".safetensors":
        try:
            return load_safetensors(file)
        except ValueError as error:
            raise WeightsError(f"weights file {error}") from error
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, LookupError, TypeError) as error:
        # Its first line: the rest advises to load the file unsafely.
        reason = str(error).partition("\n")[0]
        raise WeightsError(
            f"weights file {file.name} is no state dict that can be read safely ({reason}). Only tensors are read from "
            "a pickle, as anything else could run code: save the network's state_dict() alone, best as .safetensors"
        ) from error
    state = _network_of(loaded)
    if state is None:
        held = f"keys {first_few(map(str, loaded))}" if isinstance(loaded, Mapping) else type(loaded).__name__
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


def official_checkpoint(url: str) -> Path:
    """Return the local file of a checkpoint that torch.hub would cache, after downloading it if it is not there.

    Parameters
    ----------
    url : str
        Of a file named ``<name>-<first digits of its sha256>.pth``, as PyTorch's model zoo names them.

    Raises
    ------
    WeightsError
        If it is not there and the environment says offline, the host does not answer within 20 seconds, or the
        download fails.
    """
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    file = folder / url.rsplit("/", 1)[-1]
    if file.is_file():
        return file
    advice = f"put {file.name} into {folder}, or name a local copy of it in backbone-weights"
    promised = re.search(r"-([0-9a-f]{8,})\.", file.name)
    folder.mkdir(parents=True, exist_ok=True)
    with downloading(f"weights {file.name} are", advice):
        require_reachable(url)
        torch.hub.download_url_to_file(url, str(file), promised[1] if promised else None, progress=False)
    return file


@contextlib.contextmanager
def downloading(subject: str, advice: str) -> Iterator[None]:
    """Refuse to download if the environment says offline, and give advice if it fails.

    Parameters
    ----------
    subject : str
        The file or model, with "is" or "are" as its last word.
    advice : str
        How it can be had otherwise.

    Raises
    ------
    WeightsError
        In place of an OSError or ValueError of what is done meanwhile.
    """
    # As Hugging Face's libraries read these variables.
    truthy = {"1", "ON", "YES", "TRUE"}
    if offline := next((name for name in _OFFLINE_VARIABLES if os.environ.get(name, "").upper() in truthy), ""):
        raise WeightsError(f"{subject} not on this machine and {offline} forbids downloads: {advice}")
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_SECONDS)  # of each read: torch.hub names none, and would wait for ever
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise WeightsError(f"{subject.rpartition(' ')[0]} could not be downloaded ({error}): {advice}") from error
    finally:
        socket.setdefaulttimeout(before)


def require_reachable(url: str) -> None:
    """Raise an OSError within 20 seconds unless the host answers, with any status."""
    request = urllib.request.Request(url, method="HEAD")
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=DOWNLOAD_TIMEOUT_SECONDS):
        pass
