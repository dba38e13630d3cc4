"""Graph of the parties that mask with each other, and the shares that restore a key: both follow from their number.

A tenth of the parties may be corrupt, together with a server that follows the protocol, and three tenths may be lost.
Bell et al. 2020, section 4, with the exact hypergeometric tails: a party's secret is revealed with a probability below
2^-40, and a run whose losses stay within the bound fails with one below 2^-30.
"""

from __future__ import annotations

import functools
import hashlib
import math

CORRUPT, LOST = 0.1, 0.3
SECRECY_BITS, SUCCESS_BITS = 40, 30
# Up to this number, each party masks with all others.
MOST_COMPLETE = 64
# A class that fewer clients have is in no sum.
MIN_HOLDERS = 3


@functools.lru_cache(maxsize=8)
def degree_and_threshold(number: int) -> tuple[int, int]:
    """Return the number of neighbours of each party, and how many of their shares restore its keys.

    Parameters
    ----------
    number : int
        Parties n, at least 3.

    Raises
    ------
    ValueError
        If there are fewer.
    """
    if number < 3:
        raise ValueError(f"secure sums take at least 3 parties, got {number}")
    corrupt, lost = math.floor(CORRUPT * number), most_lost(number)
    # The ring falls apart only where k / 2 neighbours in a row are corrupt or lost, twice.
    least = math.ceil((SECRECY_BITS + 2 * math.log2(number)) / math.log2(1 / (CORRUPT + LOST)))
    degrees = range(least + least % 2, number - 1, 2) if number > MOST_COMPLETE else ()
    for degree in degrees:
        for threshold in range(degree, 1, -1):
            if number * _tail(degree - threshold, number - 1, lost, degree) < 2.0**-SUCCESS_BITS:
                if number * _tail(threshold - 1, number - 1, corrupt, degree) < 2.0**-SECRECY_BITS:
                    return degree, threshold
                break
    return number - 1, number - 1 - lost


def most_lost(number: int) -> int:
    """Return how many parties a run may lose."""
    return math.floor(LOST * number)


def neighbours(keys: tuple[bytes, ...], nonce: bytes) -> tuple[tuple[int, ...], ...]:
    """Return each party's neighbours, ascending: all others, or those next to it on a ring that the nonce draws.

    Parameters
    ----------
    keys : tuple of bytes
        A public key of every party.
    nonce : bytes
        Of the run.
    """
    number, (degree, _) = len(keys), degree_and_threshold(len(keys))
    if degree == number - 1:
        return tuple(tuple(other for other in range(number) if other != party) for party in range(number))
    ring = sorted(range(number), key=lambda party: hashlib.sha256(nonce + keys[party]).digest())
    steps = [step for step in range(-(degree // 2), degree // 2 + 1) if step]
    found = {party: sorted(ring[(place + step) % number] for step in steps) for place, party in enumerate(ring)}
    return tuple(tuple(found[party]) for party in range(number))


def _tail(most: int, population: int, marked: int, drawn: int) -> float:
    """Return the probability that more than ``most`` items of a draw without replacement are marked."""
    whole = _log_choose(population, drawn)
    return math.fsum(
        math.exp(_log_choose(marked, found) + _log_choose(population - marked, drawn - found) - whole)
        for found in range(most + 1, min(marked, drawn) + 1)
        if drawn - found <= population - marked
    )


def _log_choose(number: int, chosen: int) -> float:
    return math.lgamma(number + 1) - math.lgamma(chosen + 1) - math.lgamma(number - chosen + 1)
