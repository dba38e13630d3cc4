"""The server's side of secure sums: add masked words as they come, and remove the masks that are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedstats_app.secure.masks import Words, add_mask
from fedstats_app.secure.party import pair_keys
from fedstats_app.secure.plan import Plan
from fedstats_app.secure.shamir import combined


class MaskedSum:
    """The sum of one round's masked words.

    Parameters
    ----------
    lengths : sequence of int
        Words of each array.
    query : str
        What the words answer (:func:`fedstats_app.secure.party.query_of`); masks of a party with another query remain.

    Attributes
    ----------
    words : list of ndarray
        The sum so far, of 64-bit words that wrap around.
    survivors : list of int
        Parties whose words are in it, in the order of their replies.
    """

    def __init__(self, lengths: Sequence[int], query: str) -> None:
        self.words: list[NDArray[np.uint64]] = [np.zeros(number, np.uint64) for number in lengths]
        self.survivors: list[int] = []
        self._query = query

    def add(self, party: int, words: Words) -> None:
        """Add one party's words."""
        for total, array in zip(self.words, words, strict=True):
            total += array
        self.survivors.append(party)

    def unmask(
        self, plan: Plan, turn: int, active: Sequence[int], answers: Mapping[int, Sequence[bytes]]
    ) -> list[NDArray[np.uint64]]:
        """Remove all masks, and return the sum of the survivors' words.

        Parameters
        ----------
        plan : Plan
            Of the run.
        turn : int
            The round.
        active : sequence of int
            Its parties.
        answers : mapping
            From each survivor that answered to the shares that it gave, one for each neighbour in the round.

        Raises
        ------
        ValueError
            If too few answered to restore a key, or shares do not belong together.
        """
        of_party: dict[int, dict[int, bytes]] = {party: {} for party in active}
        for holder, given in answers.items():
            for party, share in zip(plan.neighbours_among(holder, active), given, strict=True):
                of_party[party][holder + 1] = share
        left = set(self.survivors)
        keys = {party: combined(of_party[party], plan.threshold) for party in active}
        for party, key in keys.items():
            if party in left:
                add_mask(self.words, key, -1)
                continue
            others = plan.neighbours_among(party, left)
            for other, pair in pair_keys(plan, key, party, others, turn, self._query):
                add_mask(self.words, pair, -1 if other < party else 1)
        return self.words
