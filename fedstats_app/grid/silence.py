"""Clients that let a request's time run out, and how long they are not asked again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Silences:
    """Remembers from round to round who did not answer in time.

    A client that timed out is asked again after 2 rounds, then after 4, 8 and so on: all in all it costs as many time
    limits as its absence has digits in base 2, and it misses at most about as many rounds again as it was silent for.
    An answer, also one that is an error, ends that. Outside of rounds nobody is left out.
    """

    def __init__(self) -> None:
        self._round = 0
        self._times: dict[int, int] = {}
        self._until: dict[int, int] = {}

    def next_round(self) -> None:
        """Begin a round."""
        self._round += 1

    @contextmanager
    def forgotten_afterwards(self) -> Iterator[None]:
        """Go through rounds; after them it is forgotten who was silent."""
        try:
            yield
        finally:
            self._round = 0
            self._times.clear()
            self._until.clear()

    def rests(self, client: int) -> bool:
        """Return whether a client is not to be asked now."""
        return self._round < self._until.get(client, 0)

    def reason(self, client: int) -> str:
        """Return in words why a client is not asked."""
        times, left = self._times[client], self._until[client] - self._round
        return f"not asked: it let {times} request(s) time out, and is asked again in {left} round(s)"

    def wake(self, clients: Iterable[int]) -> None:
        """Ask clients in any case, because the others would be too few."""
        for client in clients:
            self._until.pop(client, None)

    def note_timeout(self, client: int) -> None:
        """Note that a client's time ran out."""
        if self._round:
            self._times[client] = self._times.get(client, 0) + 1
            self._until[client] = self._round + 2 ** self._times[client]

    def note_answer(self, client: int) -> None:
        """Note that a client answered."""
        self._times.pop(client, None)
        self._until.pop(client, None)
