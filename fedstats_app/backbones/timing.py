"""How long a backbone takes on this machine."""

from __future__ import annotations

import time

import torch

from fedstats_app.backbones.backbone import Backbone


def seconds_per_sample(backbone: Backbone, inputs: torch.Tensor, at_least: float = 0.5) -> float:
    """Time full batches through the network, at least one, after one that is not counted.

    Parameters
    ----------
    backbone : Backbone
        Whose network it is.
    inputs : Tensor
        What one sample becomes; the batch repeats it.
    at_least : float
        Seconds that are spent.
    """
    batch = torch.stack([inputs] * backbone.batch_size)
    backbone.forward_batch(batch)
    started, passes = time.perf_counter(), 0
    while passes == 0 or time.perf_counter() - started < at_least:
        backbone.forward_batch(batch).sum().item()  # waits for the device
        passes += 1
    return (time.perf_counter() - started) / (passes * backbone.batch_size)
