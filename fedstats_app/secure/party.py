"""A party of secure sums: its keys, all from 32 random bytes, its shares and its masked words.

A party keeps :class:`Party` from message to message. Requests that would reveal too much are refused here.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from fedstats_app.secure.masks import (
    KEY_BYTES,
    TAG_BYTES,
    Words,
    add_mask,
    derived,
    public_key,
    seal,
    secrets_with,
    unseal,
)
from fedstats_app.secure.plan import MOST_ROUNDS, SIGNATURE_BYTES, Plan, PublicKeys
from fedstats_app.secure.shamir import SHARE_BYTES, shares

# Of one neighbour and round: a share of the key of its own mask, and one of its key for masks with others.
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES


class Unsafe(ValueError):
    """An answer would reveal a sum over too few parties, or the data of a single party."""


@dataclass
class Party:
    """State that a party keeps of a run.

    Attributes
    ----------
    seed : bytes
        32 random bytes, from which all its keys follow.
    nonce : bytes
        Of the run.
    rounds : int
        Number of rounds of masks.
    identity : bytes
        Its identity in all runs.
    plan : str
        Digest of the plan, once it gave shares of its keys to the others; "" before.
    sent : dict
        From each round in which it sent words to the digest of the round's parties.
    survivors : dict
        From each round that it helped to unmask to the digest of the parties in the sum.
    notes : dict
        Further state of the caller.
    signer, signature : bytes
        Of its public keys.
    """

    seed: bytes
    nonce: bytes
    rounds: int
    identity: bytes
    plan: str = ""
    sent: dict[str, str] = field(default_factory=dict)
    survivors: dict[str, str] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    signer: bytes = bytes(KEY_BYTES)
    signature: bytes = bytes(SIGNATURE_BYTES)

    @classmethod
    def new(cls, nonce: bytes, rounds: int, identity: bytes) -> Self:
        """Begin a run with new keys.

        Raises
        ------
        ValueError
            If nonce or rounds are not as they must be.
        """
        if len(nonce) != KEY_BYTES or not 1 <= rounds <= MOST_ROUNDS:
            raise ValueError(f"a run takes a nonce of 32 bytes and 1 to {MOST_ROUNDS} rounds, got {rounds} rounds")
        return cls(secrets.token_bytes(KEY_BYTES), nonce, rounds, identity)

    def to_json(self) -> str:
        """Write the state."""
        values = vars(self).items()
        return json.dumps({key: value.hex() if isinstance(value, bytes) else value for key, value in values})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        values = json.loads(text)
        names = ("seed", "nonce", "identity", "signer", "signature")
        return cls(**{**values, **{name: bytes.fromhex(values[name]) for name in names}})

    @property
    def public(self) -> PublicKeys:
        """Its public keys."""
        masks = tuple(public_key(self._mask_key(turn)) for turn in range(self.rounds))
        return PublicKeys(self.identity, public_key(self._channel), masks, self.signer, self.signature)

    def index(self, plan: Plan) -> int:
        """Return its place among the parties.

        Raises
        ------
        Unsafe
            If its keys are not among theirs, or it gave shares to other parties in this run.
        """
        if self.plan not in ("", plan.digest):
            raise Unsafe("the parties of this run have changed")
        channel = public_key(self._channel)
        place = next((index for index, party in enumerate(plan.parties) if party.channel == channel), None)
        # Once shares were given, the plan's digest stands for all keys.
        if plan.nonce != self.nonce or place is None or (not self.plan and plan.parties[place] != self.public):
            raise Unsafe("this party's keys of this run are not among those of the parties")
        return place

    def sealed_shares(self, plan: Plan) -> list[bytes]:
        """Seal a share of each key for each neighbour; one entry for each round, neighbours ascending.

        Raises
        ------
        Unsafe
            As :meth:`index`.
        """
        own = self.index(plan)
        others = plan.neighbours(own)
        self.plan = plan.digest
        points, channels = [other + 1 for other in others], self._channels(plan, others)
        found = []
        for turn in range(self.rounds):
            of_own = shares(self._own_key(turn), plan.threshold, points, self._derived(f"own-shares|{turn}"))
            of_mask = shares(self._mask_key(turn), plan.threshold, points, self._derived(f"mask-shares|{turn}"))
            keys = (self._channel_key(channels[other], f"{turn}|{own}|{other}") for other in others)
            sealed = (seal(own_share + share, key) for own_share, share, key in zip(of_own, of_mask, keys, strict=True))
            found.append(b"".join(sealed))
        return found

    def mask(self, plan: Plan, turn: int, active: Sequence[int], words: Words, query: str) -> None:
        """Mask the words of a round in place, and note that they were sent.

        Masks of two parties cancel only if both got the same query. Otherwise a server that sends one party another
        query would learn that party's words from the difference of two sums.

        Parameters
        ----------
        plan : Plan
            Of the run.
        turn : int
            The round; its masks are used once.
        active : sequence of int
            The parties of this round, ascending, itself among them.
        words : sequence of ndarray
            See :func:`fedstats_app.secure.masks.add_mask`.
        query : str
            Digest of the query that the words answer.

        Raises
        ------
        Unsafe
            If the round was used, the plan has changed, or too few are left.
        """
        own = self.index(plan)
        _check_parties(plan, own, active)
        if not 0 <= turn < self.rounds or str(turn) in self.sent or not self.plan:
            raise Unsafe(f"the masks of round {turn} are used, or were never shared")
        self.sent[str(turn)] = digest_of(active)
        add_mask(words, self._own_key(turn), 1)
        others = plan.neighbours_among(own, active)
        for other, key in pair_keys(plan, self._mask_key(turn), own, others, turn, query):
            add_mask(words, key, 1 if own < other else -1)

    def answer(
        self, plan: Plan, turn: int, active: Sequence[int], survivors: Sequence[int], sealed: Mapping[int, bytes]
    ) -> dict[int, bytes]:
        """Give out one share of each neighbour: of its own mask's key if it is in the sum, else of its pair key.

        Parameters
        ----------
        plan : Plan
            Of the run.
        turn : int
            The round.
        active : sequence of int
            As when its words were masked.
        survivors : sequence of int
            Those of them whose words are in the sum, ascending.
        sealed : mapping
            From each neighbour in the round to the shares that it sealed for this party and this round.

        Raises
        ------
        Unsafe
            If the answer would reveal more than the sum of the survivors.
        Unsealable
            If a sealed share is not its sender's.
        """
        own = self.index(plan)
        _check_parties(plan, own, survivors)
        if self.sent.get(str(turn)) != digest_of(active) or not set(survivors) <= set(active):
            raise Unsafe(f"round {turn} was masked among other parties")
        if self.survivors.setdefault(str(turn), digest_of(survivors)) != digest_of(survivors):
            raise Unsafe(f"round {turn} was unmasked for other survivors")
        left, wanted = set(survivors), plan.neighbours_among(own, active)
        if set(sealed) != set(wanted):
            raise Unsafe(f"the request must have shares of {len(wanted)} neighbours, got {len(sealed)}")
        found, channels = {}, self._channels(plan, wanted)
        for other in wanted:
            opened = unseal(sealed[other], self._channel_key(channels[other], f"{turn}|{other}|{own}"))
            found[other] = opened[:SHARE_BYTES] if other in left else opened[SHARE_BYTES:]
        return found

    @property
    def _channel(self) -> bytes:
        return self._derived("channel")

    def _own_key(self, turn: int) -> bytes:
        return self._derived(f"own|{turn}")

    def _mask_key(self, turn: int) -> bytes:
        return self._derived(f"mask|{turn}")

    def _derived(self, purpose: str) -> bytes:
        return derived(self.seed, self.nonce, purpose)

    def _channels(self, plan: Plan, others: Sequence[int]) -> dict[int, bytes]:
        secrets = secrets_with(self._channel, (plan.parties[other].channel for other in others))
        return dict(zip(others, secrets, strict=True))

    def _channel_key(self, secret: bytes, way: str) -> bytes:
        return derived(secret, self.nonce, f"shares|{way}")


def pair_keys(
    plan: Plan, private: bytes, own: int, others: Sequence[int], turn: int, query: str
) -> Iterator[tuple[int, bytes]]:
    """Yield each other party, and the key of the mask that ``own``, whose private key is given, shares with it.

    Two parties have the same key only if their queries have the same digest.
    """
    secrets = secrets_with(private, (plan.parties[other].masks[turn] for other in others))
    for other, secret in zip(others, secrets, strict=True):
        yield other, derived(secret, plan.nonce, f"pair|{turn}|{min(own, other)}|{max(own, other)}|{query}")


def digest_of(parties: Sequence[int]) -> str:
    """Return the SHA-256 of a list of parties."""
    return hashlib.sha256(json.dumps(list(parties)).encode()).hexdigest()


def _check_parties(plan: Plan, own: int, parties: Sequence[int]) -> None:
    """Refuse unknown parties, a list that does not ascend or lacks ``own``, and too few parties."""
    number = len(plan.parties)
    ascending = list(parties) == sorted(set(parties))
    if not ascending or not parties or not (0 <= parties[0] and parties[-1] < number) or own not in parties:
        raise Unsafe("parties of a round must ascend, be among those of the run, and include the receiver")
    if len(parties) < plan.least_left:
        raise Unsafe(f"of {number} parties at least {plan.least_left} must be left, got {len(parties)}")
