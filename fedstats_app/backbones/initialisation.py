"""Random weights that are the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def random_initialisation(name: str) -> Iterator[None]:
    """Draw initial weights from a stream that depends on the name alone, and leave the caller's stream untouched."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
