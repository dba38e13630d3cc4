"""Common knowledge of all parties of a run: nonce, public keys and class lists, from which all else follows.

Neighbours, the classes that are summed and their weights are computed by every party itself.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedstats_app.secure.graph import MIN_HOLDERS, degree_and_threshold, most_lost, neighbours
from fedstats_app.secure.masks import KEY_BYTES, secrets_with

# Of a party's identity, which is the same in all runs while its data are.
IDENTITY_BYTES = 16
# Of Ed25519.
SIGNATURE_BYTES = 64
# Rounds of masks in a run: each sum takes one, and so does each repetition of one that lost too many.
MOST_ROUNDS = 8
# Earlier sums that a party's data were in, each by its SHA-256.
MOST_EARLIER, DIGEST_BYTES = 256, 32
_LEAST_BYTES = 4


@dataclass(frozen=True)
class Entry:
    """A party's entry in the plan.

    Attributes
    ----------
    identity : bytes
        16 bytes that stay the same from run to run while its data do.
    channel : bytes
        Its shares travel under keys agreed on with this one.
    masks : tuple of bytes
        One key for each round. With a single key, a party lost in one round would be unmasked in earlier ones.
    classes : bytes
        One bit for each class, set for those that it has; none where noise hides them.
    earlier : tuple of bytes
        SHA-256 of each set of parties whose sum was unmasked before with its data in it, ascending.
    least : int
        Fewer parties than this are in no sum of a class, whatever the others want.
    signer, signature : bytes
        A lasting key, and its signature of all else (:mod:`fedstats_app.secure.peers`); zeros for none.
    """

    identity: bytes
    channel: bytes
    masks: tuple[bytes, ...]
    classes: bytes = b""
    earlier: tuple[bytes, ...] = ()
    least: int = MIN_HOLDERS
    signer: bytes = bytes(KEY_BYTES)
    signature: bytes = bytes(SIGNATURE_BYTES)

    def to_bytes(self) -> bytes:
        """Concatenate all fields."""
        head = (self.signature, self.identity, self.signer, self.least.to_bytes(_LEAST_BYTES), self.channel)
        return b"".join((*head, *self.masks, self.classes, *self.earlier))

    def signed_by(self, nonce: bytes, question: str) -> bytes:
        """Return the signed bytes, in the run with this nonce and question."""
        return b"keys|" + nonce + hashlib.sha256(question.encode()).digest() + self.to_bytes()[SIGNATURE_BYTES:]

    @classmethod
    def from_bytes(cls, data: bytes, rounds: int, num_classes: int) -> Self:
        """Read the bytes of :meth:`to_bytes` for these numbers of rounds and classes.

        Raises
        ------
        ValueError
            If the length is wrong.
        """
        sizes = (SIGNATURE_BYTES, IDENTITY_BYTES, KEY_BYTES, _LEAST_BYTES, *[KEY_BYTES] * (1 + rounds))
        ends = np.cumsum([*sizes, (num_classes + 7) // 8]).tolist()
        rest = len(data) - ends[-1]
        if rest < 0 or rest % DIGEST_BYTES or rest > MOST_EARLIER * DIGEST_BYTES:
            raise ValueError(f"a party's entry takes {ends[-1]} bytes and 32 for each earlier sum, got {len(data)}")
        parts = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        signature, identity, signer, least, channel, *masks, classes = parts
        earlier = tuple(data[start : start + DIGEST_BYTES] for start in range(ends[-1], len(data), DIGEST_BYTES))
        return cls(identity, channel, tuple(masks), classes, earlier, int.from_bytes(least), signer, signature)

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


@dataclass(frozen=True)
class Plan:
    """The parties of a run.

    Attributes
    ----------
    nonce : bytes
        32 bytes of this run only.
    rounds : int
        Of masks.
    num_classes : int
        Length of the class lists, 0 where noise hides them.
    parties : tuple of Entry
        In an order on which all agree; a party is known by its index.

    Raises
    ------
    ValueError
        If there are too few, or a key or an identity comes twice.
    """

    nonce: bytes
    rounds: int
    num_classes: int
    parties: tuple[Entry, ...]

    def __post_init__(self) -> None:
        degree_and_threshold(len(self.parties))
        keys = [key for party in self.parties for key in (party.channel, *party.masks)]
        if len(set(keys)) < len(keys) or len({party.identity for party in self.parties}) < len(self.parties):
            raise ValueError("keys and identities of all parties must differ, got one twice")

    @classmethod
    def from_table(cls, nonce: bytes, rounds: int, num_classes: int, table: Sequence[bytes]) -> Self:
        """Make the plan of the parties' entries."""
        return cls(nonce, rounds, num_classes, tuple(Entry.from_bytes(entry, rounds, num_classes) for entry in table))

    @functools.cached_property
    def table(self) -> list[bytes]:
        """All parties' entries."""
        return [party.to_bytes() for party in self.parties]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of all of it."""
        found = hashlib.sha256(self.nonce + bytes([self.rounds]) + self.num_classes.to_bytes(8))
        for entry in self.table:
            found.update(hashlib.sha256(entry).digest())
        return found.hexdigest()

    @property
    def is_signed(self) -> bool:
        """True if a party signed its entry."""
        return any(any(party.signature) for party in self.parties)

    @property
    def threshold(self) -> int:
        """Number of shares that restore a key."""
        return degree_and_threshold(len(self.parties))[1]

    @functools.cached_property
    def least(self) -> int:
        """Least number of parties that a sum of a class may be over: 3, or what the most careful party wants."""
        return max(MIN_HOLDERS, *(party.least for party in self.parties))

    @property
    def least_left(self) -> int:
        """Least number of parties left for which a round is unmasked."""
        return max(len(self.parties) - most_lost(len(self.parties)), self.least)

    def holders(self, parties: Sequence[int]) -> NDArray[np.int64]:
        """Count in how many of some parties' lists each class is; (C,)."""
        counts: NDArray[np.int64] = self.lists[list(parties)].sum(axis=0, dtype=np.int64)
        return counts

    def classes(self, active: Sequence[int]) -> NDArray[np.bool_]:
        """Return which classes a sum over these parties has, (C,): those that enough of them have."""
        return self.holders(active) >= self.least

    def leaves_few(self, active: Sequence[int], survivors: Sequence[int]) -> bool:
        """Return whether too few of the survivors have some class of a sum over the active parties."""
        return bool((self.holders(survivors)[self.classes(active)] < self.least).any())

    def neighbours(self, party: int) -> tuple[int, ...]:
        """Return the parties with whom a party masks, ascending."""
        return self._neighbours[party]

    def neighbours_among(self, party: int, active: Collection[int]) -> list[int]:
        """Return a party's neighbours among the active ones, ascending."""
        among = frozenset(active)
        return [other for other in self.neighbours(party) if other in among]

    @functools.cached_property
    def lists(self) -> NDArray[np.uint8]:
        """(K, C) of 0 and 1: which classes each party has."""
        rows = np.frombuffer(b"".join(party.classes for party in self.parties), np.uint8)
        return np.unpackbits(rows.reshape(len(self.parties), -1), axis=1, count=self.num_classes)

    @functools.cached_property
    def _neighbours(self) -> tuple[tuple[int, ...], ...]:
        return neighbours(tuple(party.channel for party in self.parties), self.nonce)

    def identities(self, parties: Sequence[int]) -> list[str]:
        """Return the identities of some parties in hex, sorted."""
        return sorted(self.parties[party].identity.hex() for party in parties)
