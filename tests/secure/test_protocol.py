"""The protocol without messages: sums of survivors to the last bit, whoever is lost when, and what a party refuses."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.secure.graph import degree_and_threshold, most_lost, smallest_cell
from fedstats_app.secure.masks import Unsealable, Words, add_mask, derived
from fedstats_app.secure.party import SEALED_BYTES, Party, Unsafe
from fedstats_app.secure.plan import Plan, PublicKeys
from fedstats_app.secure.shamir import combined, shares
from fedstats_app.secure.unmasking import MaskedSum

NONCE = bytes(range(32))
# Digest of what all are asked.
ASKED = 64 * "a"
SHAPES = [(5, np.dtype(np.uint16)), (3, np.dtype(np.uint32)), (2, np.dtype(np.uint64))]


@dataclass
class Federation:
    """Parties of two rounds, and what each sealed for the others."""

    number: int
    rounds: int = 2
    parties: list[Party] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parties = [Party.new(NONCE, self.rounds, bytes([one % 256] * 16)) for one in range(self.number)]
        self.plan = Plan(NONCE, self.rounds, tuple(party.public for party in self.parties))
        self.sealed = [party.sealed_shares(self.plan) for party in self.parties]

    def sealed_for(self, party: int, turn: int, active: Sequence[int]) -> dict[int, bytes]:
        found = {}
        for other in self.plan.neighbours(party):
            if other in active:
                place = SEALED_BYTES * self.plan.neighbours(other).index(party)
                found[other] = self.sealed[other][turn][place : place + SEALED_BYTES]
        return found

    def words(self, party: int) -> Words:
        """Words up to the last that there are, so that sums wrap around."""
        draw = np.random.default_rng(party)
        return [draw.integers(0, 2 ** (8 * kind.itemsize) - 1, size, kind) for size, kind in SHAPES]

    def masked(self, turn: int, active: Sequence[int], left: Sequence[int]) -> MaskedSum:
        total = MaskedSum(SHAPES, ASKED)
        for party in left:
            words = self.words(party)
            self.parties[party].mask(self.plan, turn, active, words, ASKED)
            total.add(party, words)
        return total

    def answers(
        self, turn: int, active: Sequence[int], left: Sequence[int], answering: Sequence[int]
    ) -> dict[int, dict[int, bytes]]:
        return {
            party: self.parties[party].answer(self.plan, turn, active, left, self.sealed_for(party, turn, active))
            for party in answering
        }

    def plain(self, left: Sequence[int]) -> list[np.ndarray]:
        total = MaskedSum(SHAPES, ASKED)
        for party in left:
            total.add(party, self.words(party))
        return list(total.words)


def same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    return all((one == two).all() for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("number", "lost_at"),
    [*itertools.product([5, 10], ["shares", "words", "answers", "between"]), (66, "words")],
)
def test_the_sum_is_that_of_the_survivors_whoever_is_lost_when(number: int, lost_at: str) -> None:
    federation = Federation(number)
    everybody, rest = list(range(number)), list(range(most_lost(number), number))
    active = rest if lost_at == "shares" else everybody
    left = rest if lost_at == "words" else active
    total = federation.masked(0, active, left)
    answering = rest if lost_at == "answers" else left
    assert same(
        total.unmask(federation.plan, 0, active, federation.answers(0, active, left, answering)),
        federation.plain(left),
    )

    # In the next round go on who answered; of those, others may be lost.
    active = answering
    left = rest if lost_at == "between" else active
    total = federation.masked(1, active, left)
    found = total.unmask(federation.plan, 1, active, federation.answers(1, active, left, left))
    assert same(found, federation.plain(left))


def test_one_answer_less_than_the_threshold_unmasks_nothing() -> None:
    federation = Federation(10)
    everybody, threshold = list(range(10)), federation.plan.threshold
    total = federation.masked(0, everybody, everybody)
    before = [words.copy() for words in total.words]
    # A party has no share of its own key: one more must answer for everybody to have so many.
    answers = federation.answers(0, everybody, everybody, everybody[:threshold])
    with pytest.raises(ValueError, match=f"{threshold} shares restore a key, got {threshold - 1}"):
        total.unmask(federation.plan, 0, everybody, answers)
    assert same(total.words, before)


def test_who_is_lost_in_the_second_round_stays_masked_in_the_first() -> None:
    """With one key for both rounds its words of the first, and both kinds of shares, would be the server's."""
    federation = Federation(5, rounds=2)
    everybody, left = list(range(5)), [0, 1, 2, 3]
    first = federation.masked(0, everybody, everybody)
    own = federation.answers(0, everybody, everybody, everybody)
    federation.masked(1, everybody, left)
    pairs = federation.answers(1, everybody, left, left)
    # All that the server has of party 4: the own mask of round 0, and its key for masks with others in round 1.
    key_0 = combined({one + 1: own[one][4] for one in left}, federation.plan.threshold)
    key_1 = combined({one + 1: pairs[one][4] for one in left}, federation.plan.threshold)
    assert key_1 not in (key_0, federation.parties[4]._mask_key(0))
    assert first.survivors == everybody


def test_masked_words_look_random() -> None:
    federation = Federation(5)
    words: Words = [np.zeros(2**16, np.uint16)]
    federation.parties[0].mask(federation.plan, 0, range(5), words, ASKED)
    counts = np.bincount(words[0] >> 8, minlength=256)
    chi_square = float(((counts - 256.0) ** 2 / 256.0).sum())
    assert 150 < chi_square < 400  # of 255 degrees of freedom: p > 1e-7 on either side


def masked_once(number: int = 5) -> tuple[Federation, list[int]]:
    federation, everybody = Federation(number), list(range(number))
    federation.masked(0, everybody, everybody)
    return federation, everybody


def test_masks_are_used_once() -> None:
    federation, everybody = masked_once()
    with pytest.raises(Unsafe, match="masks of round 0 are used"):
        federation.parties[0].mask(federation.plan, 0, everybody, federation.words(0), ASKED)


def test_a_round_is_unmasked_for_one_set_of_survivors() -> None:
    federation, everybody = masked_once()
    federation.answers(0, everybody, everybody, [0])
    federation.answers(0, everybody, everybody, [0])  # the same again tells nothing new
    with pytest.raises(Unsafe, match="round 0 was unmasked for other survivors"):
        federation.answers(0, everybody, [0, 1, 2, 3], [0])


def test_words_and_shares_are_of_the_same_parties() -> None:
    federation, everybody = masked_once(10)
    with pytest.raises(Unsafe, match="round 0 was masked among other parties"):
        federation.answers(0, everybody[:9], everybody[:9], [0])


@pytest.mark.parametrize("survivors", [[0, 1, 2], [1, 2, 3, 4], [1, 0, 2, 3, 4], [0, 1, 2, 3, 9], [0, 0, 1, 2, 3]])
def test_lists_of_survivors_that_cannot_be(survivors: list[int]) -> None:
    federation, everybody = masked_once()
    with pytest.raises(Unsafe, match=r"must ascend, be among those|at least 4 must be left"):
        federation.answers(0, everybody, survivors, [0])


def test_parties_do_not_change_in_a_run() -> None:
    federation, stranger = Federation(5), Party.new(NONCE, 2, bytes([9] * 16))
    keys = (*federation.plan.parties[:4], stranger.public)
    with pytest.raises(Unsafe, match="parties of this run have changed"):
        federation.parties[0].mask(Plan(NONCE, 2, keys), 0, range(5), federation.words(0), ASKED)
    with pytest.raises(Unsafe, match="keys of this run are not among those"):
        stranger.sealed_shares(federation.plan)
    with pytest.raises(Unsafe, match="never shared"):
        stranger.mask(Plan(NONCE, 2, keys), 0, range(5), federation.words(0), ASKED)


def test_keys_and_identities_come_once() -> None:
    keys = Federation(5).plan.parties
    twice = PublicKeys(bytes(16), keys[4].channel, (keys[4].masks[0], keys[0].masks[1]))
    for repeated in (keys[0], twice, PublicKeys(keys[0].identity, keys[4].channel, keys[4].masks)):
        with pytest.raises(ValueError, match="must differ, got one twice"):
            Plan(NONCE, 2, (*keys[:4], repeated))


@pytest.mark.parametrize("forged", ["swapped", "changed", "of another round"])
def test_sealed_shares_come_from_their_senders(forged: str) -> None:
    federation, everybody = masked_once()
    sealed = federation.sealed_for(0, 0, everybody)
    if forged == "swapped":
        sealed[1], sealed[2] = sealed[2], sealed[1]
    elif forged == "changed":
        sealed[1] = sealed[1][:-1] + bytes([sealed[1][-1] ^ 1])
    else:
        sealed[1] = federation.sealed_for(0, 1, everybody)[1]
    with pytest.raises(Unsealable):
        federation.parties[0].answer(federation.plan, 0, everybody, everybody, sealed)


def test_what_is_remembered_goes_on_in_another_process() -> None:
    federation, everybody = masked_once()
    federation.parties = [Party.from_json(party.to_json()) for party in federation.parties]
    with pytest.raises(Unsafe, match="masks of round 0 are used"):
        federation.parties[0].mask(federation.plan, 0, everybody, federation.words(0), ASKED)
    assert len(federation.answers(0, everybody, everybody, everybody)) == 5


# Shares


@given(st.binary(min_size=32, max_size=32), st.integers(2, 12), st.data())
@settings(max_examples=30)
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, threshold: int, data: st.DataObject) -> None:
    points = list(range(1, threshold + data.draw(st.integers(1, 6))))
    found = dict(zip(points, shares(secret, threshold, points, bytes(32)), strict=True))
    some = data.draw(st.permutations(points))[:threshold]
    if len(points) >= threshold:
        assert combined({point: found[point] for point in some}, threshold) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """With one share less, each other value of the missing one gives another secret."""
    points = [1, 2, 3]
    found = dict(zip(points, shares(bytes([7] * 32), 3, points, bytes(32)), strict=True))
    guesses = set()
    for guess in range(20):
        try:
            guesses.add(combined({**found, 3: guess.to_bytes(33, "big")}, 3))
        except ValueError:
            continue
    assert len(guesses) > 10


# Masks, graphs, overlaps


def test_masks_of_several_arrays_are_one_stream() -> None:
    """The words that AES in counter mode gives, in little-endian order: another language can make them."""
    key = derived(b"secret", b"salt", "purpose")
    whole, parts = [np.zeros(20, np.uint8)], [np.zeros(2, np.uint16), np.zeros(2, np.uint32), np.zeros(1, np.uint64)]
    add_mask(whole, key, 1)
    add_mask(parts, key, 1)
    assert whole[0].tobytes() == b"".join(part.tobytes() for part in parts)
    add_mask(parts, key, -1)
    assert not any(part.any() for part in parts)


@pytest.mark.parametrize(
    ("number", "degree", "threshold"), [(5, 4, 3), (20, 19, 13), (100, 42, 15), (1_000, 100, 38), (10_000, 124, 47)]
)
def test_degrees_and_thresholds_are_those_of_the_bounds(number: int, degree: int, threshold: int) -> None:
    assert degree_and_threshold(number) == (degree, threshold)


def test_neighbours_know_each_other_and_follow_from_the_nonce() -> None:
    keys = tuple(PublicKeys(bytes([one] * 16), bytes([one] * 32), ()) for one in range(100))
    plans = [Plan(bytes([one] * 32), 0, keys) for one in range(2)]
    for plan in plans:
        for party in range(100):
            others = plan.neighbours(party)
            assert len(set(others)) == 42 and party not in others
            assert all(party in plan.neighbours(other) for other in others)
    assert plans[0].neighbours(0) != plans[1].neighbours(0)


def test_four_sums_that_differ_by_many_in_pairs_single_one_out() -> None:
    a, b, c = (frozenset(f"{name}{number}" for number in range(10)) for name in "abc")
    sets = [a, a | b, a | c, a | b | c | {"x"}]
    assert all(len(one ^ two) >= 10 for one, two in itertools.combinations(sets, 2))
    assert [smallest_cell(sets[:number]) for number in range(1, 5)] == [10, 10, 10, 1]
    assert smallest_cell([a, a]) == 10 and smallest_cell([a, a - {"a0"}]) == 1
