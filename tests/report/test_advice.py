"""Which method to take: against a search through all methods, and at the edges."""

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.report.advice import Advice, Candidate, advise

# As in the default run, FedRoot's and the Gram matrices' bytes as their exact forms have them.
USUAL = (
    Candidate("fedncm", 0.75, 1_910_000),
    Candidate("fedcof", 0.814, 1_910_000),
    Candidate("fedroot", 0.85, 3_900_000),
    Candidate("fed3r", 0.8535, 40_000_000),
    Candidate("fedcgs", 0.853, 40_000_000),
)
MEASURED = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 4)).map(lambda pair: (pair[0] / 20, 10 ** pair[1])),
    min_size=2,
    max_size=6,
).map(lambda pairs: [Candidate(f"method {index}", *pair) for index, pair in enumerate(pairs)])
NUM_TEST = st.sampled_from([20, 400, 10_000])


def advice_on(candidates: Sequence[Candidate], num_test: int = 2000, chance: float = 0.0) -> Advice:
    found = advise(candidates, num_test, chance=chance)
    assert found is not None
    return found


def test_the_cheapest_within_the_interval_of_the_best_is_taken_and_steps_are_real() -> None:
    advice = advice_on(USUAL, chance=0.1)
    assert [step.choice.method for step in advice.steps] == ["fedcof", "fedroot"]
    assert (advice.best.method, advice.choice.method) == ("fed3r", "fedroot")
    # Wilson's interval of 1707 of 2000, by his formula (1.96^2 = 3.8415): centre and half width in points.
    assert 100 * (advice.steps[-1].high + advice.steps[-1].low) / 2 == pytest.approx(85.2822, abs=1e-3)
    assert 100 * (advice.steps[-1].high - advice.steps[-1].low) / 2 == pytest.approx(1.5491, abs=1e-3)
    assert not advice.indistinct and not advice.at_chance


@given(MEASURED, NUM_TEST)
def test_every_step_is_the_cheapest_that_reaches_the_interval_of_what_costs_less_than_the_next(
    candidates: list[Candidate], num_test: int
) -> None:
    steps = advice_on(candidates, num_test).steps
    limits = [step.choice.wire_bytes for step in steps[1:]]
    assert steps[0].choice.wire_bytes == min(one.wire_bytes for one in candidates)
    for step, limit in zip(steps, [*limits, math.inf], strict=True):
        below = [one for one in candidates if one.wire_bytes < limit]
        reach = [one for one in below if one.accuracy >= step.low]
        assert step.best in below and step.best.accuracy == max(one.accuracy for one in below)
        assert step.choice in reach
        assert not any(one.wire_bytes < step.choice.wire_bytes for one in reach)
        rivals = [one for one in reach if one.wire_bytes == step.choice.wire_bytes]
        assert step.choice.accuracy == max(one.accuracy for one in rivals)


@given(MEASURED, NUM_TEST)
def test_more_bytes_buy_more_than_noise(candidates: list[Candidate], num_test: int) -> None:
    steps = advice_on(candidates, num_test).steps
    for cheap, dear in itertools.pairwise(steps):
        assert cheap.choice.wire_bytes < dear.choice.wire_bytes
        assert cheap.choice.accuracy < dear.low <= dear.choice.accuracy


@given(MEASURED, NUM_TEST, st.randoms())
def test_the_order_of_different_methods_does_not_matter(
    candidates: list[Candidate], num_test: int, draw: random.Random
) -> None:
    different = list({(one.accuracy, one.wire_bytes): one for one in candidates}.values())
    shuffled = list(different)
    draw.shuffle(shuffled)
    assert advise(different, num_test) == advise(shuffled, num_test)


def test_a_tiny_test_set_tells_nothing_apart_and_a_huge_one_everything() -> None:
    tiny = advice_on(USUAL, 40)
    assert tiny.indistinct and [step.choice.method for step in tiny.steps] == ["fedcof"]
    huge = advice_on(USUAL, 10**8)
    assert [step.choice.method for step in huge.steps] == ["fedcof", "fedroot", "fed3r"]


def test_all_at_chance_is_said_by_the_most_frequent_class() -> None:
    guesses = [Candidate("fedncm", 0.11, 10), Candidate("fed3r", 0.09, 1000)]
    assert advice_on(guesses, chance=0.1).at_chance
    assert not advice_on(guesses, 10**6, chance=0.1).at_chance
    assert advice_on([Candidate("a", 0.0, 10), Candidate("b", 0.0, 5)]).at_chance


@pytest.mark.parametrize("num_test", [1, 7, 10_000])
@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_extreme_accuracies_lie_in_their_own_interval(accuracy: float, num_test: int) -> None:
    advice = advice_on([Candidate("a", accuracy, 10), Candidate("b", accuracy, 5)], num_test)
    assert advice.choice.method == "b" and advice.indistinct


def test_with_nothing_to_choose_between_there_is_no_advice() -> None:
    assert advise(USUAL[:1], 2000) is None
    assert advise([USUAL[0], Candidate("fed3r", None, 5)], 2000) is None  # type: ignore[arg-type]  # not evaluated
    assert advise(USUAL, 0) is None
    assert advise([], 2000) is None
