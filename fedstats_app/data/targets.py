"""The targets of a data set, where a sample has more than one class or a number."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# A label that every sample has, in secure sums: no class may be named so.
EVERY_SAMPLE = "(every sample)"
# Groups by which numbers are spread over the clients of a simulation.
_GROUPS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Targets:
    """A matrix of targets.

    Attributes
    ----------
    kind : {"labels", "numbers"}
        Labels are 0 or 1.
    values : numpy.ndarray
        ``(n, C)`` float64, a column for each of the data set's class names; NaN where a target is unknown.
    absent : float
        The value of a label that this data set does not name: 0 if its labels are lists, which name all that hold.
    """

    kind: Literal["labels", "numbers"]
    values: NDArray[np.float64]
    absent: float = np.nan

    def subset(self, indices: NDArray[np.int64]) -> Targets:
        """Return those of the samples at (m,) indices."""
        return dataclasses.replace(self, values=self.values[indices])

    def renamed(self, names: Sequence[str], wanted: Sequence[str]) -> Targets:
        """Return the columns for other names, by name; others go, and new ones are ``absent``."""
        position = {name: place for place, name in enumerate(names)}
        columns = [
            self.values[:, position[name]]
            if name in position
            else np.full(len(self.values), 1.0 if name == EVERY_SAMPLE else self.absent)
            for name in wanted
        ]
        return dataclasses.replace(self, values=np.stack(columns, axis=1))

    @property
    def counted(self) -> NDArray[np.bool_]:
        """(n, C): the samples that have each label, or of which each number is known."""
        return self.values > 0 if self.kind == "labels" else ~np.isnan(self.values)

    @property
    def groups(self) -> NDArray[np.int64]:
        """(n,) groups for a split by class: a sample's rarest label, C for none; of the first number a tenth."""
        if self.kind == "labels":
            held = np.where(self.counted, self.counted.sum(axis=0), len(self.values) + 1)
            rarest: NDArray[np.int64] = held.argmin(axis=1)
            rarest[~self.counted.any(axis=1)] = self.values.shape[1]
            return rarest
        place = np.argsort(np.argsort(self.values[:, 0], kind="stable"), kind="stable")
        groups: NDArray[np.int64] = place * _GROUPS // max(len(place), 1)
        return groups
