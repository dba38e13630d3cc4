"""How weights get into a network, and downloads that fail with advice."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedstats_app.backbones.architecture import Architecture

logger = logging.getLogger("fedstats_app")

# What training scripts put before a network's names: one of them or several, and what this app does round a network.
_PREFIXES = ("module.", "backbone.", "teacher.", "model.", "network.")
DOWNLOAD_TIMEOUT_SECONDS = 20.0
_OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


class WeightsError(RuntimeError):
    """Weights cannot be had or do not fit: the message says which file, what was expected and what to do."""


def load_strictly(module: nn.Module, state: Mapping[str, Tensor], architecture: Architecture, *, source: str) -> None:
    """Load a state dict into a backbone; every key must fit but those of the classifier, which the backbone has not.

    What a training script puts before the names of the network (``module.``, ``teacher.backbone.``) is taken off, and
    what it saved beside the network is left out.

    Parameters
    ----------
    module : nn.Module
        The network without classifier, as the architecture builds it.
    state : mapping of str to Tensor
        Of the network with or without classifier.
    architecture : Architecture
        It knows the classifier's keys, how to rename the others, and older layouts of the whole.
    source : str
        Where the state came from, for the message.

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
        logger.info("weights from %s: of %r; left out beside it: %s", source, prefix, some(beside))
    dropped = architecture.classifier_prefixes
    # A plain dict carries no version, so that modules accept the layouts of their older files too (BatchNorm without a
    # step counter, torchvision's first vision transformers).
    trunk = {architecture.rename_key(key): value for key, value in inner.items() if not key.startswith(dropped)}
    fits = trunk.keys() == own.keys() and all(trunk[key].shape == value.shape for key, value in own.items())
    load_exactly(module, trunk if fits else architecture.convert(trunk, source), source=source)


def _prefix(state: Mapping[str, Tensor], own: set[str], rename: Callable[[str], str]) -> str:
    """Return what stands before most keys of the network, "" if nothing does."""
    found = {""}
    for key in state:
        prefix = ""
        while segment := next((one for one in _PREFIXES if key.startswith(prefix + one)), ""):
            prefix += segment
            found.add(prefix)
    fitting = {one: sum(k.startswith(one) and rename(k.removeprefix(one)) in own for k in state) for one in found}
    return min(found, key=lambda one: (-fitting[one], len(one)))


def load_exactly(module: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Load a state dict of which every key must fit, and none may be missing.

    Raises
    ------
    WeightsError
        Naming missing keys, unexpected keys or tensors of another shape.
    """
    try:
        missing, unexpected = module.load_state_dict(dict(state), strict=False)
    except RuntimeError as error:  # tensors of another shape
        raise WeightsError(f"weights from {source} do not fit the backbone: {error}") from error
    problems = {"missing": missing, "unexpected": unexpected}
    if text := "; ".join(f"{len(keys)} keys {what}: {some(keys)}" for what, keys in problems.items() if keys):
        raise WeightsError(f"weights from {source} do not fit the backbone: {text}")


def official_checkpoint(url: str) -> Path:
    """Return the local file of a checkpoint that torch.hub would cache, after downloading it if it is not there.

    Parameters
    ----------
    url : str
        Of a file named ``<name>-<first digits of its sha256>.pth``, as PyTorch's model zoo names them.

    Raises
    ------
    WeightsError
        If it is not there and the environment says offline, or the download fails or stalls for 20 seconds.
    """
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    file = folder / url.rsplit("/", 1)[-1]
    if file.is_file():
        return file
    advice = f"put {file.name} into {folder}, or name a local copy of it in backbone-weights"
    with downloading(f"weights {file.name} are", advice):
        _download(url, file)
    return file


@contextlib.contextmanager
def downloading(what: str, advice: str) -> Iterator[None]:
    """Refuse to download where the environment says offline, and say what to do where it fails.

    Parameters
    ----------
    what : str
        What is wanted, with "is" or "are" as its last word.
    advice : str
        How it can be had otherwise.

    Raises
    ------
    WeightsError
        In place of an OSError or ValueError of what is done meanwhile.
    """
    if offline := _offline_variable():
        raise WeightsError(f"{what} not on this machine and {offline} forbids downloads: {advice}")
    try:
        yield
    except (OSError, ValueError) as error:
        raise WeightsError(f"{what.rpartition(' ')[0]} could not be downloaded ({error}): {advice}") from error


def _offline_variable() -> str:
    """Name the environment variable that forbids downloads, as Hugging Face's libraries read it; "" if none does."""
    truthy = {"1", "ON", "YES", "TRUE"}
    return next((name for name in _OFFLINE_VARIABLES if os.environ.get(name, "").upper() in truthy), "")


def require_reachable(url: str) -> None:
    """Raise an OSError within 20 seconds if nobody answers there; whatever is answered will do."""
    request = urllib.request.Request(url, method="HEAD")
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=DOWNLOAD_TIMEOUT_SECONDS):
        pass


def _download(url: str, file: Path) -> None:
    """Write the file in one step, so that a process beside this one never reads half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=file.name, delete=False) as part:
        try:
            with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
                while chunk := response.read(1 << 20):
                    digest.update(chunk)
                    part.write(chunk)
            part.close()
            promised = re.search(r"-([0-9a-f]{8,})\.", file.name)
            if promised and not digest.hexdigest().startswith(promised[1]):
                raise ValueError(f"its sha256 starts with {digest.hexdigest()[:8]}, not {promised[1]}")
            os.replace(part.name, file)
        finally:
            Path(part.name).unlink(missing_ok=True)


def some(names: list[str], limit: int = 4) -> str:
    """List the first few of what may be hundreds of names."""
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
