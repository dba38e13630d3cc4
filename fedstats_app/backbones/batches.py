"""How many samples a forward pass takes where nobody says: `batch-size = "auto"`."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from fedstats_app.backbones.inputs import Kind

logger = logging.getLogger("fedstats_app")

# On one thread four images were faster than 16 for small networks, whose layers' outputs then stay in a core's cache,
# and a small client pads little (docs/backbones.md). Not by the number of threads: it decides the last bits.
IMAGES, TEXTS = 4, 16
# On a GPU more bring little, and reading waits for them.
MOST = 256


def automatic_batch_size(device: str, kind: Kind, run: Callable[[int], object]) -> int:
    """Return the samples of a forward pass that suit a device.

    Parameters
    ----------
    device : {"cpu", "cuda", "mps"}
        Its type. The same batch on every CPU; on a GPU the largest power of two up to `MOST` that its memory takes.
    kind : {"image", "text"}
        What the samples are.
    run : callable
        Computes the features of a batch of so many of the largest samples.
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
