"""Which head is recommended: replays of runs, the law of the rule, and its edges."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedstats_app.report.advice import Advice, Candidate, Sends, advise

SENDS: dict[str, Sends] = {"fedncm": "means", "fedcof": "means", "fedroot": "directions"}


def advice_on(num_test: int, right: dict[str, tuple[int, int]], chance: float = 0.0, lost: int = 0) -> Advice:
    """Recommend among methods, given as (samples right, bytes); each misses ``lost`` that the one before it has."""
    candidates, cells, first = [], dict[str, Tensor](), 0
    for name, (number, wire_bytes) in right.items():
        cells[name] = torch.zeros(num_test, dtype=torch.bool)
        cells[name][first : first + number] = True
        candidates.append(Candidate(name, number / num_test, wire_bytes, SENDS.get(name, "gram")))
        first += lost
    advice = advise(candidates, cells, num_test, chance)
    assert advice is not None
    return advice


@pytest.mark.parametrize(
    ("num_test", "right", "lines"),
    [
        (
            54,
            {"fedncm": (40, 27_600), "fed3r": (47, 53_200)},
            ["Take Fed3R: 87.04 % of 54 test samples, for 53.2 KB.", "FedNCM sends 27.6 KB and loses 12.96 points"],
        ),
        (
            33,
            {"fedncm": (19, 20_000), "fedcgs": (26, 60_000)},
            ["Take FedCGS: 78.79 % of 33 test samples, for 60.0 KB.", "FedNCM sends 20.0 KB and loses 21.21 points"],
        ),
        (
            80,
            {"fedncm": (57, 20_000), "fedcof": (50, 20_000), "fed3r": (67, 60_000)},
            ["Take Fed3R: 83.75 % of 80 test samples, for 60.0 KB.", "FedNCM sends 20.0 KB and loses 12.50 points"],
        ),
    ],
)
def test_no_point_is_given_away_for_kilobytes(
    num_test: int, right: dict[str, tuple[int, int]], lines: list[str]
) -> None:
    """Runs of three hospitals, whose users were told to take FedNCM."""
    advice = advice_on(num_test, right, chance=0.25)

    assert [line[: len(start)] for line, start in zip(advice.text, lines, strict=True)] == lines
    assert "these samples tell them apart (paired p = 0.0" in advice.text[1]
    assert "can reveal more about single samples than class means." in advice.text[1]


def test_samples_that_cannot_tell_two_heads_apart_are_said_not_to() -> None:
    advice = advice_on(40, {"fed3r": (30, 2000), "fedcgs": (31, 3000)}, lost=5)
    assert advice.choice.method == "fedcgs" and advice.p_value > 0.5
    (_, line) = advice.text
    assert "loses 2.50 points; these samples cannot tell them apart (paired p = " in line
    assert "reveal" not in line  # both send a Gram matrix


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=6), st.randoms())
def test_the_most_accurate_is_taken_then_the_cheapest_whatever_the_order(found: list[tuple[int, int]], draw) -> None:  # type: ignore[no-untyped-def]
    right = {f"method {index}": pair for index, pair in enumerate(found)}
    shuffled = list(right.items())
    draw.shuffle(shuffled)
    advice = advice_on(20, right)
    assert (-round(20 * (advice.choice.accuracy or 0)), advice.choice.wire_bytes) == min((-a, b) for a, b in found)
    fewer = [(-a, b) for a, b in found if b < advice.choice.wire_bytes]
    assert (advice.cheaper is None) == (not fewer)
    if advice.cheaper is not None:
        assert (-round(20 * (advice.cheaper.accuracy or 0)), advice.cheaper.wire_bytes) == min(fewer)
    again = advice_on(20, dict(shuffled))
    assert (again.choice.accuracy, again.choice.wire_bytes) == (advice.choice.accuracy, advice.choice.wire_bytes)


def test_all_at_chance_is_said_by_the_most_frequent_class() -> None:
    advice = advice_on(200, {"fedncm": (22, 10), "fed3r": (18, 1000)}, chance=0.1)
    assert advice.at_chance and len(advice.text) == 1
    assert not advice_on(10_000, {"fedncm": (1100, 10), "fed3r": (900, 1000)}, chance=0.1).at_chance


@pytest.mark.parametrize(
    ("methods", "choice"),
    [
        (("fedncm", "fedcof", "fedroot", "fed3r", "fedcgs"), "fedcgs"),
        (("fedncm", "fedcof", "fedroot"), "fedroot"),
        (("fedncm", "fedcof@shrinkage=1"), "fedcof@shrinkage=1"),
        (("fedncm",), "fedncm"),
    ],
)
def test_what_was_not_scored_is_chosen_by_what_is_usually_best(methods: tuple[str, ...], choice: str) -> None:
    advice = advise([Candidate(name, None, 1) for name in methods], {}, 0, 0.0)
    assert advice is not None and advice.choice.method == choice and advice.cheaper is None
    assert "(not scored)" in advice.text[0]
