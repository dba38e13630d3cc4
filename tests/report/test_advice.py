"""Which method to take: against scipy's exact tests, by the laws of the rule, and at the edges."""

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fedstats_app.report.advice import FEW_BYTES, Advice, Candidate, Comparisons, advice_lines, advise

# As in the default run, FedRoot's and the Gram matrices' bytes as their exact forms have them.
USUAL = (
    Candidate("fedncm", 0.75, 995_000),
    Candidate("fedcof", 0.82, 995_000),
    Candidate("fedroot", 0.85, 2_040_000, "directions"),
    Candidate("fed3r", 0.8535, 20_100_000, "gram"),
    Candidate("fedcgs", 0.847, 20_100_000, "gram"),
)
SENDS = st.sampled_from(["means", "directions", "gram"])
MEASURED = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), SENDS), min_size=2, max_size=6).map(
    lambda found: [
        Candidate(f"method {index}", right / 20, 10**power, sends) for index, (right, power, sends) in enumerate(found)
    ]
)
NUM_TEST = st.sampled_from([20, 400, 10_000])


def right_of(candidates: Sequence[Candidate], num_test: int, agreement: str) -> dict[str, torch.Tensor]:
    """Draw for each method which samples it has right: nested, as far as they go, or drawn one by one."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    for one in candidates:
        order = torch.arange(num_test) if agreement == "nested" else torch.randperm(num_test, generator=draw)
        found[one.method] = order < round(one.accuracy * num_test)
    return found


def advice_on(
    candidates: Sequence[Candidate], num_test: int = 2000, agreement: str = "nested", chance: float = 0.0
) -> Advice:
    right = {} if agreement == "unknown" else right_of(candidates, num_test, agreement)
    found = advise(candidates, Comparisons(num_test, right), 100, chance=chance)
    assert found is not None
    return found


def test_of_methods_that_cannot_be_told_apart_the_one_that_tells_least_is_taken() -> None:
    advice = advice_on(USUAL, agreement="drawn", chance=0.1)

    assert (advice.best.method, advice.choice.method) == ("fed3r", "fedroot")
    assert [step.choice.method for step in advice.steps] == ["fedcof", "fedroot"]
    assert not advice.indistinct and not advice.at_chance and advice.few_bytes
    lines = advice_lines(advice)
    assert lines[0].startswith("Take FedRoot: 85.00 % for 2.04 MB. The 2,000 test samples cannot tell it from Fed3R")
    assert lines[1] == (
        "It sends 1/10 of the bytes. A Gram matrix can reveal more about single samples than a few directions do."
    )
    assert lines[2] == "With less to send, FedCOF: 82.00 % for 995.0 KB, 3.00 points less at 1/2 of the bytes."


def test_where_the_samples_tell_the_more_accurate_one_comes_first_and_the_cheaper_second() -> None:
    sites = [Candidate("fedroot", 0.5838, 400_000, "directions"), Candidate("fed3r", 0.6269, 2_400_000, "gram")]
    right = {name: torch.zeros(394, dtype=torch.bool) for name in ("fedroot", "fed3r")}
    for name, own in (("fedroot", slice(221, 230)), ("fed3r", slice(230, 256))):  # 9 against 26, beside 221 of both
        right[name][:221] = True
        right[name][own] = True

    advice = advise(sites, Comparisons(394, right), 10)

    assert advice is not None and advice.choice == advice.best == sites[1]
    assert Comparisons(394, right).chance(*sites) == pytest.approx(binomtest(9, 35).pvalue)
    assert [step.choice.method for step in advice.steps] == ["fedroot", "fed3r"]
    assert advice_lines(advice)[0] == "Take Fed3R: 62.69 % for 2.40 MB: the most accurate."


@given(MEASURED, NUM_TEST, st.sampled_from(["nested", "drawn", "unknown"]))
def test_the_laws_of_the_rule(candidates: list[Candidate], num_test: int, agreement: str) -> None:
    advice = advice_on(candidates, num_test, agreement)
    compared = Comparisons(num_test, {} if agreement == "unknown" else right_of(candidates, num_test, agreement))
    few = max(one.wire_bytes for one in candidates) <= 100 * FEW_BYTES

    assert advice.few_bytes == few
    assert advice.best.accuracy == max(one.accuracy for one in candidates)
    for step in advice.steps:
        assert step.chance >= 0.05
        assert step.choice == step.best or step.chance >= compared.chance(step.best, step.choice)
        rivals = [one for one in candidates if one.accuracy == step.choice.accuracy]
        key = (lambda one: ["means", "directions", "gram"].index(one.sends)) if few else (lambda one: one.wire_bytes)
        if step == advice.steps[-1]:
            assert key(step.choice) == min(key(one) for one in rivals)
    for cheap, dear in itertools.pairwise(advice.steps):
        assert cheap.choice.wire_bytes < dear.choice.wire_bytes
        assert cheap.choice.accuracy < dear.best.accuracy
        assert compared.chance(dear.best, cheap.choice) < 0.05


@given(st.integers(1, 60), st.data())
def test_without_pairs_no_difference_is_claimed_that_pairs_would_not_show(num_test: int, data: st.DataObject) -> None:
    right = {
        name: torch.tensor(data.draw(st.lists(st.booleans(), min_size=num_test, max_size=num_test))) for name in "ab"
    }
    pair = [Candidate(name, float(of.double().mean()), 1) for name, of in right.items()]

    paired, blind = Comparisons(num_test, right).chance(*pair), Comparisons(num_test, {}).chance(*pair)

    assert blind >= paired - 1e-12
    first, second = right["a"], right["b"]
    wins, losses = int((first & ~second).sum()), int((second & ~first).sum())
    assert paired == pytest.approx(binomtest(wins, wins + losses).pvalue if wins + losses else 1.0)


def test_clients_and_classes_tell_what_two_accuracies_do_not() -> None:
    """Three hospitals, four classes of about 40 test images: one method is better by two or three images in each."""
    better = torch.tensor([33, 28, 30, 25, 36, 31, 27, 29, 30, 34, 26, 32])
    right = {"fedncm": better - torch.tensor([2, 3] * 6), "fed3r": better}
    pair = [Candidate(name, int(of.sum()) / 480, 1000) for name, of in right.items()]

    assert Comparisons(480, right).chance(*pair) == pytest.approx(2 / 2**12)
    assert Comparisons(480, {}).chance(*pair) > 0.05


@given(MEASURED, NUM_TEST, st.randoms())
def test_the_order_of_different_methods_does_not_matter(
    candidates: list[Candidate], num_test: int, draw: random.Random
) -> None:
    different = list({(one.accuracy, one.wire_bytes): one for one in candidates}.values())
    if len(different) < 2:
        return
    shuffled = list(different)
    draw.shuffle(shuffled)
    assert advice_on(different, num_test) == advice_on(shuffled, num_test)


def test_where_bytes_matter_the_cheapest_is_taken() -> None:
    heavy = [Candidate("fed3r", 0.851, 20_000 * FEW_BYTES, "gram"), Candidate("fedcgs", 0.85, 200 * FEW_BYTES, "gram")]
    heavy.append(Candidate("fedcof", 0.849, 300 * FEW_BYTES))
    assert advice_on(heavy, 400, "drawn").choice.method == "fedcgs"


def test_a_tiny_test_set_tells_nothing_apart_and_a_huge_one_everything() -> None:
    tiny = advice_on(USUAL[1:], 40, "drawn")
    assert tiny.indistinct and [step.choice.method for step in tiny.steps] == ["fedcof"]
    assert "cannot tell it from" in advice_lines(tiny)[0]
    huge = advice_on(USUAL, 10**6, "unknown")
    assert [step.choice.method for step in huge.steps] == ["fedcof", "fedroot", "fed3r"]


def test_all_at_chance_is_said_by_the_most_frequent_class() -> None:
    guesses = [Candidate("fedncm", 0.11, 10), Candidate("fed3r", 0.09, 1000)]
    assert advice_on(guesses, chance=0.1).at_chance
    assert not advice_on(guesses, 10**6, chance=0.1).at_chance
    assert advice_lines(advice_on(guesses, chance=0.1)) == [
        "No method is better than naming the most frequent class, as far as 2,000 test samples can tell."
    ]
    assert advice_on([Candidate("a", 0.0, 10), Candidate("b", 0.0, 5)]).at_chance


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_equal_accuracies_leave_the_cheaper_one(accuracy: float) -> None:
    advice = advice_on([Candidate("a", accuracy, 10), Candidate("b", accuracy, 5)], 7)
    assert advice.choice.method == "b" and advice.indistinct


def test_with_nothing_to_choose_between_there_is_no_advice() -> None:
    assert advise(USUAL[:1], Comparisons(2000, {}), 100) is None
    assert advise(USUAL, Comparisons(0, {}), 100) is None
    assert advise([], Comparisons(2000, {}), 100) is None
    assert advice_lines(None) == []


@pytest.mark.parametrize(
    ("dear", "share"), [(3000, "1/3"), (40_400, "1/40"), (1300, "77 %"), (2500, "40 %"), (1001, "100 %")]
)
def test_a_share_of_bytes_is_a_fraction_or_per_cent(dear: int, share: str) -> None:
    advice = advice_on([Candidate("fedncm", 0.85, 1000), Candidate("fed3r", 0.8501, dear, "gram")])
    assert advice_lines(advice)[1].startswith(f"It sends {share} of the bytes.")
