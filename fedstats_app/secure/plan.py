"""Common knowledge of all parties of a run: the nonce and all public keys, from which the neighbours follow."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from fedstats_app.secure.graph import degree_and_threshold, most_lost, neighbours
from fedstats_app.secure.masks import KEY_BYTES, secrets_with

# Of a party's identity, which is the same in all runs.
IDENTITY_BYTES = 16
# Of Ed25519.
SIGNATURE_BYTES = 64
# Rounds of masks in a run: each sum takes one, and so does each repetition of one that lost too many.
MOST_ROUNDS = 8


@dataclass(frozen=True)
class PublicKeys:
    """Public keys of a party.

    Attributes
    ----------
    identity : bytes
        16 bytes that stay the same from run to run while its data do.
    channel : bytes
        Its shares travel under keys agreed on with this one.
    masks : tuple of bytes
        One key for each round. With a single key, a party lost in one round would be unmasked in earlier ones.
    signer, signature : bytes
        A lasting key, and its signature of all others (:mod:`fedstats_app.secure.peers`); zeros for none.
    """

    identity: bytes
    channel: bytes
    masks: tuple[bytes, ...]
    signer: bytes = bytes(KEY_BYTES)
    signature: bytes = bytes(SIGNATURE_BYTES)

    def to_bytes(self) -> bytes:
        """Concatenate signature, identity and keys."""
        return b"".join((self.signature, self.identity, self.signer, self.channel, *self.masks))

    def signed_by(self, nonce: bytes) -> bytes:
        """Return the signed bytes, in the run with this nonce."""
        return b"keys|" + nonce + self.to_bytes()[SIGNATURE_BYTES:]

    @classmethod
    def from_bytes(cls, data: bytes, rounds: int) -> Self:
        """Read the bytes of :meth:`to_bytes` for this number of rounds.

        Raises
        ------
        ValueError
            If the length is wrong.
        """
        if len(data) != cls.size(rounds):
            raise ValueError(f"keys of {rounds} rounds take {cls.size(rounds)} bytes, got {len(data)}")
        first = SIGNATURE_BYTES + IDENTITY_BYTES
        signer, channel, *masks = (data[start : start + KEY_BYTES] for start in range(first, len(data), KEY_BYTES))
        return cls(data[SIGNATURE_BYTES:first], channel, tuple(masks), signer, data[:SIGNATURE_BYTES])

    def check(self) -> None:
        """Refuse keys with which no other party can agree on a secret.

        Raises
        ------
        ValueError
            If there is one.
        """
        try:
            list(secrets_with(bytes(KEY_BYTES), (self.channel, *self.masks)))
        except ValueError:
            raise ValueError("keys: must agree with others, got one that agrees with none") from None

    @staticmethod
    def size(rounds: int) -> int:
        """Return the length of :meth:`to_bytes`."""
        return SIGNATURE_BYTES + IDENTITY_BYTES + KEY_BYTES * (2 + rounds)


@dataclass(frozen=True)
class Plan:
    """The parties of a run.

    Attributes
    ----------
    nonce : bytes
        32 bytes of this run only.
    rounds : int
        Of masks.
    parties : tuple of PublicKeys
        In an order on which all agree; a party is known by its index.

    Raises
    ------
    ValueError
        If there are too few, or a key or an identity comes twice.
    """

    nonce: bytes
    rounds: int
    parties: tuple[PublicKeys, ...]

    def __post_init__(self) -> None:
        degree_and_threshold(len(self.parties))
        keys = [key for party in self.parties for key in (party.channel, *party.masks)]
        if len(set(keys)) < len(keys) or len({party.identity for party in self.parties}) < len(self.parties):
            raise ValueError("keys and identities of all parties must differ, got one twice")

    @classmethod
    def from_bytes(cls, nonce: bytes, rounds: int, table: bytes) -> Self:
        """Make the plan of the parties' keys, one after another."""
        size = PublicKeys.size(rounds)
        parts = (table[start : start + size] for start in range(0, len(table), size))
        return cls(nonce, rounds, tuple(PublicKeys.from_bytes(part, rounds) for part in parts))

    @functools.cached_property
    def table(self) -> bytes:
        """All parties' keys, one after another."""
        return b"".join(party.to_bytes() for party in self.parties)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of nonce and keys."""
        return hashlib.sha256(self.nonce + bytes([self.rounds]) + self.table).hexdigest()

    @property
    def is_signed(self) -> bool:
        """True if a party signed its keys."""
        return any(any(party.signature) for party in self.parties)

    @property
    def threshold(self) -> int:
        """Number of shares that restore a key."""
        return degree_and_threshold(len(self.parties))[1]

    @property
    def least_left(self) -> int:
        """Least number of parties left for which a round is unmasked."""
        return len(self.parties) - most_lost(len(self.parties))

    def neighbours(self, party: int) -> tuple[int, ...]:
        """Return the parties with whom a party masks, ascending."""
        return self._neighbours[party]

    def neighbours_among(self, party: int, active: Collection[int]) -> list[int]:
        """Return a party's neighbours among the active ones, ascending."""
        among = frozenset(active)
        return [other for other in self.neighbours(party) if other in among]

    @functools.cached_property
    def _neighbours(self) -> tuple[tuple[int, ...], ...]:
        return neighbours(tuple(party.channel for party in self.parties), self.nonce)

    def identities(self, parties: Sequence[int]) -> list[str]:
        """Return the identities of some parties in hex, sorted."""
        return sorted(self.parties[party].identity.hex() for party in parties)
