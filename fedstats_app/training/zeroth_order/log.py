"""The log of a zeroth-order training: a seed and a few scalars a round, which turn the start into the tuned model."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SEED_LIMIT = 2**63


@dataclass(frozen=True)
class Update:
    """What all replicas do in one round: theta <- theta - sum_p steps[p] z_p.

    Attributes
    ----------
    seed : int
        Of the round's directions, in [0, 2^63).
    steps : tuple of float
        Learning rate x averaged difference quotient / number of directions, rounded once by the server; all zero where
        nothing changes.

    Raises
    ------
    ValueError
        If the seed is out of range, or there is no step or one that is not finite.
    """

    seed: int
    steps: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEED_LIMIT:
            raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}")
        if not self.steps or not all(math.isfinite(step) for step in self.steps):
            raise ValueError(f"steps must be finite numbers, at least one, got {self.steps}")


class UpdateLog(Sequence[Update]):
    """The updates of rounds 1, 2, ..., T in their order.

    Parameters
    ----------
    num_directions : int
        Steps of every update.
    updates : iterable of Update
        Those of the first rounds.

    Raises
    ------
    ValueError
        If an update has another number of steps.
    """

    def __init__(self, num_directions: int, updates: Sequence[Update] = ()) -> None:
        if num_directions < 1:
            raise ValueError(f"num_directions must be at least 1, got {num_directions}")
        self.num_directions = num_directions
        self._updates: list[Update] = []
        for update in updates:
            self.append(update)

    def append(self, update: Update) -> None:
        """Add the next round's update."""
        if len(update.steps) != self.num_directions:
            raise ValueError(f"an update must have {self.num_directions} step(s), got {len(update.steps)}")
        self._updates.append(update)

    def __len__(self) -> int:
        return len(self._updates)

    def __iter__(self) -> Iterator[Update]:
        return iter(self._updates)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # overloads would say less than Sequence does
        """Return the update of round ``index + 1``, or those of a slice."""
        return self._updates[index]

    def to_bytes(self, after: int = 0) -> bytes:
        """Return the updates of the rounds after ``after``: 8 bytes a seed and 8 a step, little-endian."""
        return pack_updates(self._updates[after:])


def pack_updates(updates: Sequence[Update]) -> bytes:
    """Return updates as bytes; see :meth:`UpdateLog.to_bytes`."""
    return b"".join(struct.pack(f"<q{len(update.steps)}d", update.seed, *update.steps) for update in updates)


def unpack_updates(data: bytes, num_directions: int) -> list[Update]:
    """Return the updates that :func:`pack_updates` wrote.

    Raises
    ------
    ValueError
        If the bytes are not a whole number of updates, or hold what no update can be.
    """
    entry = struct.Struct(f"<q{num_directions}d")
    if len(data) % entry.size:
        raise ValueError(f"updates of {num_directions} direction(s) take {entry.size} bytes each, got {len(data)}")
    return [Update(seed, tuple(steps)) for seed, *steps in entry.iter_unpack(data)]


@dataclass(frozen=True)
class SeedPool:
    """A finite pool of seeds, which bounds what a node must be told, however many rounds it was away (FedKSeed).

    Attributes
    ----------
    first : int
        The pool is first, first + 1, ..., first + size - 1.
    size : int
        K.

    Raises
    ------
    ValueError
        If it is empty or leaves the range of seeds.
    """

    first: int
    size: int

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.first <= SEED_LIMIT - self.size:
            raise ValueError(f"a pool must have at least one seed, all in [0, 2^63), got {self.first} and {self.size}")

    def index(self, seed: int) -> int:
        """Return the position of a seed.

        Raises
        ------
        ValueError
            If it is not in the pool.
        """
        if not 0 <= seed - self.first < self.size:
            raise ValueError(f"seed {seed} is not in the pool [{self.first}, {self.first + self.size})")
        return seed - self.first
