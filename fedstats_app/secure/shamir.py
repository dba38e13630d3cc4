"""Shares of a secret modulo a prime: a threshold of them restores it, fewer reveal nothing (Shamir 1979)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedstats_app.secure.masks import stream

PRIME = 2**256 + 297
SHARE_BYTES = 33
# Of a coefficient before it is taken modulo the prime: its distribution is uniform to 2^-127.
_COEFFICIENT_BYTES = 48


def shares(secret: bytes, threshold: int, points: Sequence[int], key: bytes) -> list[bytes]:
    """Split a secret of 32 bytes.

    Parameters
    ----------
    secret : bytes
        32 bytes.
    threshold : int
        Number of shares that restore it.
    points : sequence of int
        Different, above 0; one share for each.
    key : bytes
        Determines the polynomial: the same key gives the same shares.
    """
    drawn = stream(key, _COEFFICIENT_BYTES * (threshold - 1))
    coefficients = [
        int.from_bytes(drawn[start : start + _COEFFICIENT_BYTES], "big") % PRIME
        for start in range(0, len(drawn), _COEFFICIENT_BYTES)
    ]
    found = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value + coefficient) * point % PRIME
        found.append(((value + int.from_bytes(secret, "big")) % PRIME).to_bytes(SHARE_BYTES, "big"))
    return found


def combined(found: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of the shares at some points, of which the first ``threshold`` are used.

    Raises
    ------
    ValueError
        If they are fewer, or do not belong together.
    """
    if len(found) < threshold:
        raise ValueError(f"{threshold} shares restore a key, got {len(found)}")
    points = sorted(found)[:threshold]
    total = 0
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        total += int.from_bytes(found[point], "big") * above * pow(below, -1, PRIME)
    secret = total % PRIME
    if secret >= 2**256:
        raise ValueError("shares of a key do not belong together")
    return secret.to_bytes(32, "big")
