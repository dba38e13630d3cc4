"""Samples and directions that are given, for zeroth-order training."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedstats_app.fedmezo.directions import Directions


class Exact:
    """Samples in float64, which no file holds but the golden one."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._inputs, self.labels = inputs, labels

    def inputs(self, indices: Tensor) -> Tensor:
        return self._inputs[indices]


class Stored(Directions):
    """Directions that are given: one row (2, D) per round, for weight and bias of a linear layer."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        object.__setattr__(self, "values", values)

    def blocks(
        self, seed: int, index: int, name: str, size: int, device: torch.device | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        row = self.values[seed, index]  # type: ignore[attr-defined]
        yield slice(0, size), (row[:size] if name == "weight" else row[-size:]).clone()
