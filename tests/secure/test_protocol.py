"""The protocol without messages: sums of survivors to the last bit, whoever is lost when, and what a party refuses."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.secure.graph import degree_and_threshold, most_lost
from fedstats_app.secure.masks import Unsealable, Words, add_mask, derived, stream
from fedstats_app.secure.party import SEALED_BYTES, Party, Unsafe, query_of
from fedstats_app.secure.plan import Entry, Plan
from fedstats_app.secure.sets import check_set, classes_of_few, set_of
from fedstats_app.secure.shamir import combined, shares
from fedstats_app.secure.unmasking import MaskedSum

NONCE, QUESTION, KINDS = bytes(range(32)), "what all are asked", ("first", "second")
LENGTHS = (5, 3, 2)


@dataclass
class Federation:
    """Parties of two rounds, and what each sealed for the others."""

    number: int
    rounds: int = 2
    classes: tuple[int, ...] = ()  # each party's list, as a number of eight bits
    parties: list[Party] = field(default_factory=list)

    def __post_init__(self) -> None:
        lists = [bytes([own]) for own in self.classes] or [b""] * self.number
        self.parties = [self.party(own, lists[own]) for own in range(self.number)]
        self.plan = Plan(NONCE, self.rounds, 8 * bool(self.classes), tuple(party.own for party in self.parties))
        sealed = [party.sealed_shares(self.plan) for party in self.parties]
        self.parties, self.sealed = [party for party, _ in sealed], [parts for _, parts in sealed]

    def party(self, number: int, classes: bytes = b"", least: int = 3) -> Party:
        identity = bytes([number % 256] * 16)
        return Party.new(
            NONCE, self.rounds, QUESTION, lambda channel, masks: Entry(identity, channel, masks, classes, (), least)
        )

    def sealed_for(self, party: int, turn: int, active: Sequence[int]) -> list[bytes]:
        found = []
        for other in self.plan.neighbours_among(party, active):
            place = SEALED_BYTES * self.plan.neighbours(other).index(party)
            found.append(self.sealed[other][turn][place : place + SEALED_BYTES])
        return found

    def words(self, party: int) -> Words:
        """Words up to the last that there are, so that sums wrap around."""
        draw = np.random.default_rng(party)
        return [draw.integers(0, 2**64 - 1, size, np.uint64) for size in LENGTHS]

    def mask(self, party: int, turn: int, active: Sequence[int], words: Words, kind: str = "") -> None:
        self.parties[party] = self.parties[party].mask(self.plan, turn, active, words, kind or KINDS[turn])

    def masked(self, turn: int, active: Sequence[int], left: Sequence[int]) -> MaskedSum:
        total = MaskedSum(LENGTHS, query_of(QUESTION, KINDS[turn], active))
        for party in left:
            words = self.words(party)
            self.mask(party, turn, active, words)
            total.add(party, words)
        return total

    def answers(
        self, turn: int, active: Sequence[int], left: Sequence[int], answering: Sequence[int]
    ) -> dict[int, list[bytes]]:
        found = {}
        for party in answering:
            sealed = self.sealed_for(party, turn, active)
            self.parties[party], found[party] = self.parties[party].answer(self.plan, turn, active, left, sealed)
        return found

    def plain(self, left: Sequence[int]) -> list[np.ndarray]:
        total = MaskedSum(LENGTHS, "")
        for party in left:
            total.add(party, self.words(party))
        return list(total.words)


def same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    return all((one == two).all() for one, two in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("number", "lost_at"), [*itertools.product([5, 10], ["shares", "words", "answers", "between"]), (66, "words")]
)
def test_the_sum_is_that_of_the_survivors_whoever_is_lost_when(number: int, lost_at: str) -> None:
    federation = Federation(number)
    everybody, rest = list(range(number)), list(range(most_lost(number), number))
    active = rest if lost_at == "shares" else everybody
    left = rest if lost_at == "words" else active
    total = federation.masked(0, active, left)
    answering = rest if lost_at == "answers" else left
    assert same(
        total.unmask(federation.plan, 0, active, federation.answers(0, active, left, answering)), federation.plain(left)
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
    # All that the server has of party 4: its own mask of round 0, and its key for masks with others in round 1.
    key_0 = combined({one + 1: own[one][-1] for one in left}, federation.plan.threshold)
    key_1 = combined({one + 1: pairs[one][-1] for one in left}, federation.plan.threshold)
    assert key_1 not in (key_0, federation.parties[4]._mask_key(0)) and first.survivors == everybody


def test_masked_words_look_random() -> None:
    federation = Federation(5)
    words: Words = [np.zeros(2**16, np.uint64)]
    federation.mask(0, 0, range(5), words)
    chi_square = float(((np.bincount((words[0] >> 56).astype(int), minlength=256) - 256.0) ** 2 / 256.0).sum())
    assert 150 < chi_square < 400  # of 255 degrees of freedom: p > 1e-7 on either side


def masked_once(number: int = 5) -> tuple[Federation, list[int]]:
    federation, everybody = Federation(number), list(range(number))
    federation.masked(0, everybody, everybody)
    return federation, everybody


def test_masks_are_used_once() -> None:
    federation, everybody = masked_once()
    with pytest.raises(Unsafe, match="masks of round 0 are used"):
        federation.mask(0, 0, everybody, federation.words(0))


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


def test_a_kind_of_sum_is_unmasked_once() -> None:
    federation, everybody = masked_once()
    federation.answers(0, everybody, everybody, [0])
    federation.mask(0, 1, everybody, federation.words(0), kind=KINDS[0])
    with pytest.raises(Unsafe, match="first of this run of masks are known, and are not unmasked twice"):
        federation.answers(1, everybody, everybody, [0])


def test_parties_and_their_lists_do_not_change_in_a_run() -> None:
    federation = Federation(5, classes=(1,) * 5)
    stranger, entries = federation.party(9, b"\x01"), federation.plan.parties
    for changed in ((*entries[:4], stranger.own), (*entries[:4], replace(entries[4], classes=b"\x80"))):
        federation.plan = Plan(NONCE, 2, 8, changed)
        with pytest.raises(Unsafe, match="parties of this run have changed"):
            federation.mask(0, 0, range(5), federation.words(0))
    with pytest.raises(Unsafe, match="never shared"):
        stranger.mask(Plan(NONCE, 2, 8, (*entries[:4], stranger.own)), 0, range(5), federation.words(0), "first")
    for own in (replace(stranger.own, classes=b""), replace(stranger.own, earlier=(bytes(32),))):
        with pytest.raises(Unsafe, match="keys of this run are not among those"):
            stranger.sealed_shares(Plan(NONCE, 2, 8, (*entries[:4], own)))


def test_keys_and_identities_come_once() -> None:
    keys = Federation(5).plan.parties
    twice = Entry(bytes(16), keys[4].channel, (keys[4].masks[0], keys[0].masks[1]))
    for repeated in (keys[0], twice, Entry(keys[0].identity, keys[4].channel, keys[4].masks)):
        with pytest.raises(ValueError, match="must differ, got one twice"):
            Plan(NONCE, 2, 0, (*keys[:4], repeated))


# Class lists


def test_a_class_is_summed_if_enough_have_it_and_unmasked_if_enough_are_left() -> None:
    """Of five parties three have the first class, five the second, two the third: 0b10100000 and so on."""
    federation = Federation(5, classes=(0b11100000, 0b11100000, 0b11000000, 0b01000000, 0b01000000))
    assert federation.plan.classes(range(5)).tolist() == [True, True, *[False] * 6]
    everybody, left = list(range(5)), [0, 1, 2, 3]
    federation.masked(0, everybody, everybody)
    assert len(federation.answers(0, everybody, left, [3])) == 1
    with pytest.raises(Unsafe, match="of a class fewer than 3 clients that have it are left"):
        federation.answers(0, everybody, [1, 2, 3, 4], [1])
    # The sum begins anew without it.
    assert federation.plan.classes([1, 2, 3, 4]).tolist() == [False, True, *[False] * 6]
    assert federation.plan.holders([1, 2, 3, 4])[:3].tolist() == [2, 4, 1]


def test_the_most_careful_party_says_how_many_a_sum_is_over() -> None:
    parties = [Federation(3).party(own, b"\x80", least=5 if own == 2 else 3).own for own in range(6)]
    plan = Plan(NONCE, 2, 8, tuple(parties))
    assert (plan.least, plan.least_left) == (5, 5)
    assert plan.classes(range(5))[0] and not plan.classes(range(4))[0]


def test_an_entry_is_read_as_it_was_written_or_not_at_all() -> None:
    entry = Entry(bytes([1] * 16), bytes([2] * 32), (bytes([3] * 32),), b"\x80", (bytes([4] * 32),), 7)
    data = entry.to_bytes()
    assert Entry.from_bytes(data, 1, 3) == entry
    for wrong in (data[:-1], data + b"x", data[:100]):
        with pytest.raises(ValueError, match="a party's entry takes"):
            Entry.from_bytes(wrong, 1, 3)


@pytest.mark.parametrize("forged", ["swapped", "changed", "of another round"])
def test_sealed_shares_come_from_their_senders(forged: str) -> None:
    federation, everybody = masked_once()
    sealed = federation.sealed_for(0, 0, everybody)
    if forged == "swapped":
        sealed[0], sealed[1] = sealed[1], sealed[0]
    elif forged == "changed":
        sealed[1] = sealed[1][:-1] + bytes([sealed[1][-1] ^ 1])
    else:
        sealed[1] = federation.sealed_for(0, 1, everybody)[1]
    with pytest.raises(Unsealable):
        federation.parties[0].answer(federation.plan, 0, everybody, everybody, sealed)


def test_what_is_remembered_goes_on_in_another_process() -> None:
    federation, everybody = masked_once()
    again = [Party.from_json(party.to_json()) for party in federation.parties]
    assert again == federation.parties
    federation.parties = again
    with pytest.raises(Unsafe, match="masks of round 0 are used"):
        federation.mask(0, 0, everybody, federation.words(0))
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
    whole, parts = [np.zeros(5, np.uint64)], [np.zeros(2, np.uint64), np.zeros(3, np.uint64)]
    add_mask(whole, key, 1)
    add_mask(parts, key, 1)
    assert whole[0].tobytes() == b"".join(part.tobytes() for part in parts) == stream(key, 40)
    add_mask(parts, key, -1)
    assert not any(part.any() for part in parts)


@pytest.mark.parametrize(
    ("number", "degree", "threshold"), [(5, 4, 3), (20, 19, 13), (100, 42, 15), (1_000, 100, 38), (10_000, 124, 47)]
)
def test_degrees_and_thresholds_are_those_of_the_bounds(number: int, degree: int, threshold: int) -> None:
    assert degree_and_threshold(number) == (degree, threshold)


def test_neighbours_know_each_other_and_follow_from_the_nonce() -> None:
    keys = tuple(Entry(bytes([one] * 16), bytes([one] * 32), ()) for one in range(100))
    plans = [Plan(bytes([one] * 32), 0, 0, keys) for one in range(2)]
    for plan in plans:
        for party in range(100):
            others = plan.neighbours(party)
            assert len(set(others)) == 42 and party not in others
            assert all(party in plan.neighbours(other) for other in others)
    assert plans[0].neighbours(0) != plans[1].neighbours(0)


# Sets of parties


def sum_over(*parties: str, classes: Sequence[str] = ("bee",)) -> bytes:
    every = {party.encode().ljust(16, b".").hex(): list(range(len(classes))) for party in parties}
    return json.dumps({"classes": list(classes), "parties": every}, sort_keys=True).encode()


def test_a_set_has_the_classes_that_are_in_the_sum() -> None:
    federation = Federation(4, classes=(0b11000000, 0b11000000, 0b10000000, 0b10000000))
    found = set_of(federation.plan, [*"abcdefgh"], range(4), [0, 1, 2])
    check_set(found)
    assert json.loads(found)["parties"] == {bytes([own] * 16).hex(): [0] for own in range(3)}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"classes": [1], "parties": {}}', b"[" * 100_000])
def test_what_is_no_set_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="must be JSON of classes and parties"):
        check_set(content)
    party = {"00" * 16: [1]}
    with pytest.raises(ValueError, match="must be JSON of classes and parties"):
        check_set(json.dumps({"classes": ["bee"], "parties": party}).encode())


def test_a_second_set_differs_by_none_or_by_enough_class_by_class() -> None:
    first = sum_over(*"abc", classes=["ant", "bee"])
    assert classes_of_few(first, [first], 3) == []
    assert classes_of_few(sum_over(*"abcd", classes=["ant"]), [first], 3) == ["ant"]
    assert classes_of_few(sum_over(*"abcdef", classes=["ant"]), [first], 3) == []
    assert classes_of_few(sum_over(*"abcdef", classes=["ant"]), [first], 4) == ["ant"]
    # Whose data changed is another party.
    assert classes_of_few(sum_over("a", "b", "C", classes=["bee", "ant"]), [first], 3) == ["ant", "bee"]
    assert classes_of_few(sum_over("A", "B", "C", classes=["bee", "ant"]), [first], 3) == []


def test_combinations_of_many_sums_single_nobody_out() -> None:
    """Each two of four sums differ by ten, all four together give x; and x is a third sum less two."""
    a, b, c = ([f"{name}{number}" for number in range(10)] for name in "abc")
    sets = [sum_over(*a), sum_over(*a, *b), sum_over(*a, *c)]
    for number in range(1, 3):
        assert classes_of_few(sets[number], sets[:number], 10) == []
    assert classes_of_few(sum_over(*a, *b, *c, "x"), sets, 10) == ["bee"]
    assert classes_of_few(sum_over(*a, *b, "x"), [sum_over(*a), sum_over(*b)], 10) == ["bee"]


def test_what_the_owner_has_allowed_once_stands_in_the_way_no_more() -> None:
    known = [sum_over(*"abc"), sum_over(*"abcd")]
    assert classes_of_few(sum_over(*"abcdxyz"), known, 3) == []
    assert classes_of_few(sum_over(*"abcdwxyz"), [*known, sum_over(*"abcdxyz")], 3) == ["bee"]
