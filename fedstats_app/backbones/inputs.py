"""What a backbone asks of the transform in front of it, and the batches of one fixed shape that it is run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Kind = Literal["image", "text"]


class InputTransform(Protocol):
    """From one sample to one of the few tensors that a network may be given.

    The shape that comes out depends on the sample alone: it decides the last bits of its features.
    """

    @property
    def kind(self) -> Kind:
        """What a sample is: "image" (a PIL image in mode RGB) or "text" (a str)."""

    @property
    def input_size(self) -> int:
        """Side of the square image in pixels, or the most tokens of a text."""

    @property
    def spec(self) -> dict[str, object]:
        """All that determines the result, as values that JSON can hold."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Every shape that may come out."""

    @property
    def dtype(self) -> torch.dtype:
        """Of what comes out."""

    def blank(self) -> Tensor:
        """Return what an empty sample becomes, to try a network on."""

    def probes(self) -> list[Tensor]:
        """Return some inputs, always the same ones, on which two ways of computing features are compared."""

    def __call__(self, sample: Any, /) -> Tensor:
        """Turn one sample into a tensor of one of the shapes, on the CPU."""

    def stack(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return one batch of inputs, at least one; those of other shapes are padded to the largest."""


class PaddedBatch:
    """Inputs of one shape on the CPU, as many as a forward pass takes; rows that stay free are zero.

    Parameters
    ----------
    size : int
        Rows of the batch.
    shape : tuple of int
        Of one input.
    dtype : torch.dtype
        Of the inputs.
    memory_format : torch.memory_format
        How they lie in memory.
    pinned : bool
        Whether that memory is page-locked, as copies to a GPU like it.

    Attributes
    ----------
    positions : list of int
        Of the samples in the first rows.
    """

    def __init__(
        self, size: int, shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format, *, pinned: bool
    ) -> None:
        self._inputs = torch.empty((size, *shape), dtype=dtype, memory_format=memory_format, pin_memory=pinned)
        # The same memory, copied into by one thread: torch's pool is slow where cores are shared.
        self._rows = self._inputs.numpy()
        self.positions: list[int] = []

    @property
    def is_full(self) -> bool:
        """Whether no row is free."""
        return len(self.positions) == len(self._rows)

    def add(self, position: int, inputs: Tensor) -> None:
        """Put a sample's input into the next free row."""
        self._rows[len(self.positions)] = inputs.numpy()
        self.positions.append(position)

    def take(self) -> tuple[Tensor, list[int]]:
        """Return all rows and the positions of the first ones; the batch is free again, in the same memory."""
        self._rows[len(self.positions) :] = 0
        positions, self.positions = self.positions, []
        return self._inputs, positions


class InOrder:
    """Rows that are finished out of order and handed on in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, Tensor] = {}
        self._next = 0

    def add(self, rows: Tensor, positions: list[int]) -> None:
        """Take rows (b, d) in, with the position of each."""
        self._waiting.update(zip(positions, rows, strict=True))

    def ready(self) -> Tensor | None:
        """Return the rows (n, d) for which none before is missing, or None if there is none."""
        found: list[Tensor] = []
        while self._next in self._waiting:
            found.append(self._waiting.pop(self._next))
            self._next += 1
        return torch.stack(found) if found else None
