"""What all parties of a run know: the nonce and everybody's public keys; who is whose neighbour follows from it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

from fedstats_app.secure.graph import degree_and_threshold, most_lost, neighbours
from fedstats_app.secure.masks import KEY_BYTES, secrets_with

# By which a party is known in other runs.
IDENTITY_BYTES = 16
# Of Ed25519.
SIGNATURE_BYTES = 64
# Rounds of masks in a run: each sum takes one, and so does each repetition of one that lost too many.
MOST_ROUNDS = 8


@dataclass(frozen=True)
class PublicKeys:
    """What a party gives to all others.

    Attributes
    ----------
    identity : bytes
        16 bytes that stay the same from run to run while its data do.
    channel : bytes
        Its shares travel under keys agreed on with this one.
    masks : tuple of bytes
        One key for each round. With one key for all, who is lost in one round would be unmasked in those before.
    signer, signature : bytes
        A lasting key, and its signature of all others (:mod:`fedstats_app.secure.peers`); zeros for none.
    """

    identity: bytes
    channel: bytes
    masks: tuple[bytes, ...]
    signer: bytes = bytes(KEY_BYTES)
    signature: bytes = bytes(SIGNATURE_BYTES)

    def to_bytes(self) -> bytes:
        """Write them one after another."""
        return b"".join((self.signature, self.identity, self.signer, self.channel, *self.masks))

    def signed_by(self, nonce: bytes) -> bytes:
        """Return what the signature is of, in the run with this nonce."""
        return b"keys|" + nonce + self.to_bytes()[SIGNATURE_BYTES:]

    @classmethod
    def from_bytes(cls, data: bytes, rounds: int) -> Self:
        """Read what :meth:`to_bytes` wrote for so many rounds.

        Raises
        ------
        ValueError
            If it is of another length.
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
            for _ in secrets_with(bytes(KEY_BYTES), (self.channel, *self.masks)):
                pass
        except ValueError:
            raise ValueError("keys: must agree with others, got one that agrees with none") from None

    @staticmethod
    def size(rounds: int) -> int:
        """Return the bytes that they take."""
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
        """Whether a party signed its keys."""
        return any(any(party.signature) for party in self.parties)

    @property
    def threshold(self) -> int:
        """How many shares give a key back."""
        return degree_and_threshold(len(self.parties))[1]

    @property
    def least_left(self) -> int:
        """Fewer parties than this unmask nothing, lest the lost and the corrupt be too many."""
        return len(self.parties) - most_lost(len(self.parties))

    def neighbours(self, party: int) -> tuple[int, ...]:
        """Return the parties with whom a party masks, ascending."""
        return self._neighbours[party]

    def neighbours_among(self, party: int, active: Collection[int]) -> list[int]:
        """Return which of some parties a party masks with, ascending."""
        among = frozenset(active)
        return [other for other in self.neighbours(party) if other in among]

    @functools.cached_property
    def _neighbours(self) -> tuple[tuple[int, ...], ...]:
        return neighbours(tuple(party.channel for party in self.parties), self.nonce)

    def identities(self, parties: Sequence[int]) -> list[str]:
        """By which some parties are known in other runs, sorted."""
        return sorted(self.parties[party].identity.hex() for party in parties)
