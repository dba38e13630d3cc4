"""What happened in a round of FedMeZO, and when there have been too many in which nothing did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedstats_app.fedmezo.log import Update
from fedstats_app.grid.discovery import TooFewClients
from fedstats_app.grid.mezo_exchange import Asked

# Rounds without enough usable scalars, one after another, after which training ends.
MAX_VOID_ROUNDS = 10


@dataclass(frozen=True)
class MezoRound:
    """What happened in one round.

    Attributes
    ----------
    server_round : int
        From 1.
    update : Update
        What every replica does; all zero if too few clients answered.
    num_examples : dict
        From every client whose scalars were averaged to its number of samples.
    clipped : tuple of int
        Clients of which some were cut.
    left_out : dict
        From every client that is out of proportion to how many times the usual size its scalars are.
    asked : Asked
        Failures, replays and bytes.
    seconds : float
        Wall-clock time.
    """

    server_round: int
    update: Update
    num_examples: Mapping[int, int]
    clipped: tuple[int, ...]
    left_out: Mapping[int, float]
    asked: Asked
    seconds: float


class VoidRounds:
    """Counts rounds with too few usable answers, one after another."""

    def __init__(self) -> None:
        self._number = 0

    def note(self, server_round: int, usable: int, number_asked: int, needed: int, asked: Asked) -> None:
        """Count a round.

        Raises
        ------
        TooFewClients
            If it is the tenth in a row.
        """
        self._number = self._number + 1 if usable < needed else 0
        if self._number >= MAX_VOID_ROUNDS:
            raise TooFewClients(
                f"round {server_round}: {usable} of {number_asked} clients sent usable scalars, {needed} are needed "
                f"(min-clients), and so for {MAX_VOID_ROUNDS} rounds; {asked.reasons()}"
            )
