"""Random directions from a counter-based generator, and a parameter moved along one: the same bits everywhere.

A direction is keyed by (round seed, number of the direction, parameter name): no draw depends on the order or the set
of the parameters, on what was drawn before, or on how a tensor is cut into blocks. The bits are those of Philox4x64-10
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), whose stream numpy keeps stable, and from bits
to numbers everything is exact.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# The quantiles of the normal distribution, in steps of this: float32 and float64 hold the table exactly, and the last
# bits of a platform's logarithm are rounded away.
_QUANTILE_STEP = 2.0**-12
_QUANTILES_SHA256 = "22eff448358fb3c32080b3b524e32552f28ab50ed1bd11bee9ff39c7fb29c8a3"

Table = Tensor | NDArray[np.float32]


@functools.lru_cache(maxsize=4)
def signs(device: torch.device) -> Table:
    """Return (256, 8): the signs that a byte's bits stand for, the lowest bit first."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    table: NDArray[np.float32] = 2 * bits.astype(np.float32) - 1
    return table if device.type == "cpu" else torch.from_numpy(table).to(device)


@functools.lru_cache(maxsize=4)
def quantiles(device: torch.device) -> Table:
    """Return (65536,): the quantiles of the standard normal distribution at (i + 1/2) / 65536.

    Raises
    ------
    RuntimeError
        If this platform computes other ones than all others do.
    """
    probabilities = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    steps = (torch.special.ndtri(probabilities) / _QUANTILE_STEP).round()
    table: NDArray[np.float32] = (steps * _QUANTILE_STEP + 0.0).numpy().astype("<f4")
    if hashlib.sha256(table.tobytes()).hexdigest() != _QUANTILES_SHA256:
        raise RuntimeError(
            "this platform computes other normal quantiles than the rest of the federation would: "
            "use rademacher directions, which need no arithmetic"
        )
    return table if device.type == "cpu" else torch.from_numpy(table).to(device)


Distribution = Literal["rademacher", "gaussian"]

DTYPES = (torch.float64, torch.float32)

# Numbers drawn at a time, which bounds the memory of a draw; a GPU is faster with larger blocks. The stream does not
# depend on the block, which is a multiple of the numbers that one word of the generator gives.
CPU_BLOCK = 2**16
DEVICE_BLOCK = 2**22


@dataclass(frozen=True)
class Directions:
    """Distribution of the directions along which the model is probed.

    Attributes
    ----------
    distribution : {"rademacher", "gaussian"}
        Every coordinate is +1 or -1, by one bit; or one of 2^16 equally likely quantiles of the standard normal
        distribution, in multiples of 2^-12 (variance 1 - 2e-5, at most 4.33 in size). Others raise a ValueError.
    """

    distribution: Distribution = "rademacher"

    def __post_init__(self) -> None:
        if self.distribution not in get_args(Distribution):
            allowed = ", ".join(get_args(Distribution))
            raise ValueError(f"distribution must be one of {allowed}, got {self.distribution!r}")

    def blocks(
        self, seed: int, index: int, name: str, size: int, device: torch.device | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Draw one parameter's part of direction number ``index`` of the round that has a seed in [0, 2^63).

        Bits are drawn on the CPU, and looked up on the device.

        Yields
        ------
        positions : slice
            Of the block among the parameter's elements, in the order of a contiguous tensor.
        values : Tensor
            (b,) float32, the caller's to change.
        """
        if not 0 <= seed < 2**63 or index < 0:
            raise ValueError(f"seed must lie in [0, 2^63) and index be at least 0, got {seed} and {index}")
        key = hashlib.sha256(f"direction\0{seed}\0{index}\0{name}".encode()).digest()[:16]
        generator = np.random.Philox(key=np.frombuffer(key, dtype="<u8").astype(np.uint64))
        device = device or torch.device("cpu")
        by_bits = self.distribution == "rademacher"
        table = signs(device) if by_bits else quantiles(device)
        block = CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
        for start in range(0, size, block):
            count = min(block, size - start)
            # Whole words of the generator, the lowest byte of a word first.
            words = np.asarray(generator.random_raw(math.ceil(count / (64 if by_bits else 4))), dtype="<u8")
            values = _look_up(table, words.view(np.uint8 if by_bits else "<u2"), device)
            yield slice(start, start + count), values.reshape(-1)[:count]


@dataclass(frozen=True)
class Probe:
    """One direction z of one round, and how far the model goes along it: to theta +- epsilon z."""

    seed: int
    index: int
    epsilon: float
    directions: Directions = field(default_factory=Directions)

    def perturbed(self, parameter: Tensor, name: str, sign: int) -> Tensor:
        """Return theta + sign * epsilon * z as a new tensor; errors are those of :func:`flat`."""
        theta = flat(parameter)
        result = torch.empty_like(theta)
        for positions, z in self.blocks(parameter, name):
            # The product with a sign is exact: fused or not, the sum is rounded once.
            torch.add(theta[positions], z.mul_(self.epsilon), alpha=sign, out=result[positions])
        return result.view(parameter.shape)

    def blocks(self, parameter: Tensor, name: str) -> Iterator[tuple[slice, Tensor]]:
        """Yield z in the parameter's dtype, in blocks as :meth:`Directions.blocks` does."""
        theta = flat(parameter)
        for positions, z in self.directions.blocks(self.seed, self.index, name, len(theta), theta.device):
            yield positions, z.to(theta.dtype)


def flat(parameter: Tensor) -> Tensor:
    """Return a parameter's elements in one row, sharing its memory.

    A ValueError refuses a dtype that cannot be tuned, and another layout than that of a contiguous tensor.
    """
    if parameter.dtype not in DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"a tuned parameter must be one of {allowed}, got {parameter.dtype}")
    if not parameter.is_contiguous():
        raise ValueError(f"a tuned parameter must be contiguous, got strides {parameter.stride()}")
    return parameter.detach().view(-1)


def _look_up(table: Table, words: NDArray[np.unsignedinteger], device: torch.device) -> Tensor:
    if isinstance(table, Tensor):
        return table[torch.from_numpy(words.astype(np.int32)).to(device)]
    return torch.from_numpy(np.take(table, words, axis=0))  # numpy's, which is one pass of copying
