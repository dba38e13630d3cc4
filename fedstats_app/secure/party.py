"""A party of secure sums: its keys, all from 32 random bytes, its shares and its masked words.

A party keeps :class:`Party`, a value, from message to message. Requests that would reveal too much are refused here.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

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
from fedstats_app.secure.plan import MOST_ROUNDS, Entry, Plan
from fedstats_app.secure.shamir import SHARE_BYTES, shares

# Of one neighbour and round: a share of the key of its own mask, and one of its key for masks with others.
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES


class Unsafe(ValueError):
    """An answer would reveal a sum over too few parties, or the data of a single party."""


@dataclass(frozen=True)
class Sent:
    """Words that a party sent in a round.

    Attributes
    ----------
    kind : str
        Of sum.
    active : str
        Digest of the round's parties.
    note : str
        By which the caller knows them.
    """

    kind: str
    active: str
    note: str = ""


@dataclass(frozen=True)
class Party:
    """State that a party keeps of a run; every step returns the next.

    Attributes
    ----------
    seed : bytes
        32 random bytes, from which all its keys follow.
    nonce : bytes
        Of the run.
    rounds : int
        Number of rounds of masks.
    question : str
        Text of all that the run asks for.
    own : Entry
        Its entry in the plan, with its keys.
    plan : str
        Digest of the plan, once it gave shares of its keys to the others; "" before.
    sent : mapping
        By round, the words that it sent.
    survivors : mapping
        From each round that it helped to unmask to the digest of the parties in the sum.
    sets : tuple of bytes
        Sets of parties of earlier sums (:mod:`fedstats_app.secure.sets`), of all parties' data.
    """

    seed: bytes
    nonce: bytes
    rounds: int
    question: str
    own: Entry
    plan: str = ""
    sent: Mapping[int, Sent] = field(default_factory=dict)
    survivors: Mapping[int, str] = field(default_factory=dict)
    sets: tuple[bytes, ...] = ()

    @classmethod
    def new(cls, nonce: bytes, rounds: int, question: str, own: Callable[[bytes, tuple[bytes, ...]], Entry]) -> Self:
        """Begin a run with new keys.

        Parameters
        ----------
        nonce, rounds, question
            As above.
        own : callable
            From the public keys of channel and masks to the party's entry.

        Raises
        ------
        ValueError
            If nonce or rounds are not as they must be.
        """
        if len(nonce) != KEY_BYTES or not 1 <= rounds <= MOST_ROUNDS:
            raise ValueError(f"a run takes a nonce of 32 bytes and 1 to {MOST_ROUNDS} rounds, got {rounds} rounds")
        seed = secrets.token_bytes(KEY_BYTES)
        privates = [derived(seed, nonce, purpose) for purpose in ("channel", *map("mask|{}".format, range(rounds)))]
        channel, *masks = map(public_key, privates)
        return cls(seed, nonce, rounds, question, own(channel, tuple(masks)))

    def to_json(self) -> str:
        """Write the state."""
        values = {
            "seed": self.seed.hex(),
            "nonce": self.nonce.hex(),
            "rounds": self.rounds,
            "question": self.question,
            "own": self.own.to_bytes().hex(),
            "num-classes": 8 * len(self.own.classes),
            "plan": self.plan,
            "sent": {turn: [sent.kind, sent.active, sent.note] for turn, sent in self.sent.items()},
            "survivors": dict(self.survivors),
            "sets": [content.decode() for content in self.sets],
        }
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        values = json.loads(text)
        return cls(
            bytes.fromhex(values["seed"]),
            bytes.fromhex(values["nonce"]),
            values["rounds"],
            values["question"],
            Entry.from_bytes(bytes.fromhex(values["own"]), values["rounds"], values["num-classes"]),
            values["plan"],
            {int(turn): Sent(*sent) for turn, sent in values["sent"].items()},
            {int(turn): digest for turn, digest in values["survivors"].items()},
            tuple(content.encode() for content in values["sets"]),
        )

    def index(self, plan: Plan) -> int:
        """Return its place among the parties.

        Raises
        ------
        Unsafe
            If its entry is not among theirs, or it gave shares to other parties in this run.
        """
        if self.plan not in ("", plan.digest):
            raise Unsafe("the parties of this run have changed")
        if plan.nonce != self.nonce or self.own not in plan.parties:
            raise Unsafe("this party's keys of this run are not among those of the parties")
        return plan.parties.index(self.own)

    def sealed_shares(self, plan: Plan) -> tuple[Self, list[bytes]]:
        """Seal a share of each key for each neighbour; one entry for each round, neighbours ascending.

        Raises
        ------
        Unsafe
            As :meth:`index`.
        """
        own = self.index(plan)
        others = plan.neighbours(own)
        points, channels = [other + 1 for other in others], self._channels(plan, others)
        found = []
        for turn in range(self.rounds):
            of_own = shares(self._own_key(turn), plan.threshold, points, self._derived(f"own-shares|{turn}"))
            of_mask = shares(self._mask_key(turn), plan.threshold, points, self._derived(f"mask-shares|{turn}"))
            keys = (self._channel_key(channels[other], f"{turn}|{own}|{other}") for other in others)
            sealed = (seal(own_share + share, key) for own_share, share, key in zip(of_own, of_mask, keys, strict=True))
            found.append(b"".join(sealed))
        return replace(self, plan=plan.digest), found

    def mask(
        self,
        plan: Plan,
        turn: int,
        active: Sequence[int],
        words: Words,
        kind: str,
        *,
        known: bytes = b"",
        note: str = "",
    ) -> Self:
        """Mask the words of a round in place, and note that they were sent.

        Masks of two parties cancel only if both got the same query, of :func:`query_of`. Otherwise a server that sends
        one party another query would learn that party's words from the difference of two sums.

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
        kind : str
            Of sum.
        known : bytes
            What the server sent for it.
        note : str
            By which the caller knows the words.

        Raises
        ------
        Unsafe
            If the round was used, the plan has changed, or too few are left.
        """
        own = self.index(plan)
        _check_parties(plan, own, active)
        if not 0 <= turn < self.rounds or turn in self.sent or not self.plan:
            raise Unsafe(f"the masks of round {turn} are used, or were never shared")
        add_mask(words, self._own_key(turn), 1)
        others, query = plan.neighbours_among(own, active), query_of(self.question, kind, active, known)
        for other, key in pair_keys(plan, self._mask_key(turn), own, others, turn, query):
            add_mask(words, key, 1 if own < other else -1)
        return replace(self, sent={**self.sent, turn: Sent(kind, digest_of(active), note)})

    def answer(
        self, plan: Plan, turn: int, active: Sequence[int], survivors: Sequence[int], sealed: Sequence[bytes]
    ) -> tuple[Self, list[bytes]]:
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
        sealed : sequence of bytes
            What each neighbour in the round, ascending, sealed for this party and this round.

        Raises
        ------
        Unsafe
            If the answer would reveal more than the sum of the survivors, or that of a class over too few of them.
        Unsealable
            If a sealed share is not its sender's.
        """
        own = self.index(plan)
        _check_parties(plan, own, survivors)
        sent = self.sent.get(turn)
        if sent is None or sent.active != digest_of(active) or not set(survivors) <= set(active):
            raise Unsafe(f"round {turn} was masked among other parties")
        if self.survivors.get(turn, digest_of(survivors)) != digest_of(survivors):
            raise Unsafe(f"round {turn} was unmasked for other survivors")
        if any(self.sent[other].kind == sent.kind for other in self.survivors if other != turn):
            raise Unsafe(f"{sent.kind} of this run of masks are known, and are not unmasked twice")
        if plan.leaves_few(active, survivors):
            raise Unsafe(f"of a class fewer than {plan.least} clients that have it are left")
        left, wanted = set(survivors), plan.neighbours_among(own, active)
        if len(sealed) != len(wanted):
            raise Unsafe(f"the request must have shares of {len(wanted)} neighbours, got {len(sealed)}")
        found, channels = [], self._channels(plan, wanted)
        for other, share in zip(wanted, sealed, strict=True):
            opened = unseal(share, self._channel_key(channels[other], f"{turn}|{other}|{own}"))
            found.append(opened[:SHARE_BYTES] if other in left else opened[SHARE_BYTES:])
        return replace(self, survivors={**self.survivors, turn: digest_of(survivors)}), found

    def _own_key(self, turn: int) -> bytes:
        return self._derived(f"own|{turn}")

    def _mask_key(self, turn: int) -> bytes:
        return self._derived(f"mask|{turn}")

    def _derived(self, purpose: str) -> bytes:
        return derived(self.seed, self.nonce, purpose)

    def _channels(self, plan: Plan, others: Sequence[int]) -> dict[int, bytes]:
        secrets = secrets_with(self._derived("channel"), (plan.parties[other].channel for other in others))
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


def query_of(question: str, kind: str, active: Sequence[int], known: bytes = b"") -> str:
    """Return the SHA-256 of all that words answer."""
    parts = [question, kind, list(active), hashlib.sha256(known).hexdigest()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


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
