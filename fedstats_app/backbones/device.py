"""Device, precision and batch size of a backbone, checked against this machine."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

from fedstats_app.base.threads import share_of_memory
from fedstats_app.data.dataset import Kind

GPU = Path("/dev/nvidia0")
_AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

logger = logging.getLogger("fedstats_app")
# On one thread four images were faster than 16 for small networks, whose layers' outputs then stay in a core's cache,
# and a small client pads little. Not by the number of threads: it decides the last bits.
IMAGES, TEXTS = 4, 16
# Batches of a CPU up to this size run side by side, one thread each.
SMALL = 16
# Memory that a forward pass takes, in bytes for each of its input: 24 of EfficientNet-Lite0, 22 of ResNet-50, 28 of
# ViT-B/16; 2,700 of all-MiniLM-L6-v2, whose token is two integers, and more of larger ones.
ACTIVATIONS: dict[Kind, int] = {"image": 28, "text": 4096}
# On a GPU more bring little, and reading waits for them.
MOST = 256


def resolve_device(device: str) -> torch.device:
    """Return the device of "cpu", "cuda", "cuda:N", "mps", or "auto" (cuda where there is one, else cpu).

    Raises
    ------
    ValueError
        If it is none of these, or not on this machine.
    """
    if device == "auto":
        # Not mps: it has no float64, in which statistics are accumulated on the backbone's device.
        if torch.cuda.is_available():
            return torch.device("cuda")
        _name_hidden_gpu()
        return torch.device("cpu")
    kind, _, index = device.partition(":")
    found = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if kind not in found or not (index or "0").isdecimal():
        raise ValueError(f"device must be one of auto, cpu, cuda, cuda:N, mps; got {device!r}")
    if int(index or 0) >= found[kind]:
        raise ValueError(f"device {device!r} is not on this machine: {kind} devices found: {found[kind]}")
    return torch.device(device)


def small_batches_at_once(kind: Kind, sample_bytes: int, batch_size: int) -> int:
    """Return how many small batches fit into a quarter of the memory at the same time, at least one."""
    return max(1, share_of_memory(4) // (batch_size * sample_bytes * ACTIVATIONS[kind]))


@functools.cache
def _name_hidden_gpu() -> None:
    """Warn once where this process was given no GPU of a machine that has one, as by Ray."""
    if GPU.exists() and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        logger.warning(
            "device cpu, though this machine has a GPU: in a simulation, "
            "--federation-config 'client-resources-num-gpus=0.5' gives it to clients"
        )


def resolve_autocast(autocast: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of an autocast option on a device; None for none.

    Raises
    ------
    ValueError
        If there is no such option, or not on such a device.
    """
    if autocast == "none":
        return None
    if autocast not in _AUTOCAST_DTYPES:
        raise ValueError(f"autocast must be one of none, {', '.join(_AUTOCAST_DTYPES)}; got {autocast!r}")
    if device.type == "mps" or (device.type == "cpu" and autocast == "fp16"):
        raise ValueError(f"autocast {autocast!r} is not available on {device.type}: cpu takes bf16, cuda bf16 and fp16")
    return _AUTOCAST_DTYPES[autocast]


def automatic_batch_size(device: str, kind: Kind, run: Callable[[int], object]) -> int:
    """Return the samples of a forward pass that suit a device.

    Parameters
    ----------
    device : {"cpu", "cuda", "mps"}
        Its type. The same batch on every CPU; on a GPU the largest power of two up to `MOST` that its memory takes.
    kind : {"image", "text"}
        What the samples are.
    run : callable
        Computes the features of a batch of the largest samples, of the given size.
    """
    if device != "cuda":
        return IMAGES if kind == "image" else TEXTS
    size = MOST
    while size > 1:
        try:
            run(size)
            break
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            size //= 2
    logger.info("batch-size auto: %d", size)
    return size
