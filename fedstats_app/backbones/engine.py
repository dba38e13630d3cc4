"""Engines that compute features: torch, or OpenVINO where it is installed. No torch is imported here."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from typing import Literal

Engine = Literal["torch", "openvino", "openvino-bf16"]
TORCH: Engine = "torch"
OPENVINO: Engine = "openvino"
BFLOAT16: Engine = "openvino-bf16"
ENGINES = ("auto", TORCH, OPENVINO, BFLOAT16)
# An owner may choose among those whose features are equal but for rounding.
NODE_ENGINES = ("auto", TORCH, OPENVINO)
# Of the difference between features by such an engine and by plain torch, relative to the latter's length.
BOUND = 1e-4
# Weights of a network below which OpenVINO's own start takes longer than torch for thousands of images.
SMALL_NETWORK = 500_000


class EngineError(ValueError):
    """An engine cannot run a network; the message says why and what to do."""


def openvino_version() -> str:
    """Return the version of OpenVINO, "" where it is not installed; it is not imported."""
    return _installed_version() if importlib.util.find_spec("openvino") else ""


# Reading a package's metadata takes milliseconds, and every client asks.
_installed_version = functools.cache(functools.partial(importlib.metadata.version, "openvino"))


def chosen_engine(wanted: str, *, device: str, autocast: str, num_weights: int) -> tuple[Engine, str]:
    """Return the engine that an option stands for on this machine, and why in words.

    "auto" is OpenVINO if it is installed, on the CPU in float32 and for networks that are not small; else torch.

    Parameters
    ----------
    wanted : {"auto", "torch", "openvino", "openvino-bf16"}
        The option.
    device : {"cpu", "cuda", "mps"}
        Where torch would compute.
    autocast : str
        Torch's precision, "none" for float32.
    num_weights : int
        Of the network.

    Raises
    ------
    ModuleNotFoundError
        If OpenVINO is asked for and not installed.
    ValueError
        If there is no such engine, or it does not run such a network in such a way.
    """
    if wanted not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}; got {wanted!r}")
    on_cpu = device == "cpu"
    reason = "" if on_cpu else f"it computes on the CPU, the device is {device}"
    if on_cpu and autocast != "none":
        reason = f"autocast {autocast} is of torch"
    if wanted == TORCH:
        return TORCH, "as asked for"
    if wanted == "auto":
        if not reason and num_weights < SMALL_NETWORK:
            reason = "the network is small"
        if not reason and not openvino_version():
            reason = "it is not installed"
        return (TORCH, f"not OpenVINO: {reason}") if reason else (OPENVINO, "it is installed")
    if reason:
        raise ValueError(f"engine {wanted}: {reason}; use engine auto or torch")
    if not openvino_version():
        raise ModuleNotFoundError(f"engine {wanted} needs OpenVINO: pip install 'fedstats-app[fast]'")
    return (BFLOAT16 if wanted == BFLOAT16 else OPENVINO), "as asked for"
