"""What a network is, measured before it is used: a digest of all that decides its features, and how many there are."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import nn

from fedstats_app.backbones.inputs import InputTransform


class InputSizeError(ValueError):
    """A network cannot take samples of the size that is asked for: the message says which and why."""


def fingerprint_of(name: str, module: nn.Module, transform: InputTransform) -> str:
    """Hash the architecture's name, every weight (name, dtype, shape, bytes) and the transform."""
    digest = hashlib.sha256(json.dumps([name, transform.spec], sort_keys=True).encode())
    for key, value in module.state_dict().items():
        if key.endswith("num_batches_tracked"):
            continue  # a counter of training steps: some files lack it, and no feature depends on it
        tensor = value.detach().cpu().contiguous()
        digest.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def measured_feature_dim(name: str, module: nn.Module, transform: InputTransform) -> int:
    """Run one blank sample through the network: it must become one finite vector."""
    try:
        with torch.inference_mode():
            features = module(transform.blank()[None])
    except (RuntimeError, ValueError, AssertionError) as error:  # the last is how timm refuses a size
        size = transform.input_size
        what = f"images of {size} x {size} pixels" if transform.kind == "image" else f"texts of {size} tokens"
        raise InputSizeError(f"{name} cannot take {what}: {error}") from error
    if features.ndim != 2 or features.shape[0] != 1 or not bool(features.isfinite().all()):
        shape = tuple(features.shape)
        raise ValueError(f"{name} must turn a sample into one finite vector (1, d), got shape {shape}")
    return int(features.shape[1])
