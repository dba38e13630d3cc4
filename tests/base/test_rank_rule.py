"""Rules for ranks: what is one, what is none, and which rank each gives."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.rank_rule import RankRule, rank_rule

RULES = {
    "sqrt(n)": RankRule("root", 1.0),
    "2 sqrt(n)": RankRule("root", 2.0),
    "0.5 sqrt(n)": RankRule("root", 0.5),
    "0 sqrt(n)": RankRule("root", 0.0),
    "90%": RankRule("share", 0.9),
    "12.5%": RankRule("share", 0.125),
    "64": RankRule("number", 64.0),
    "0": RankRule("number", 0.0),
    "full": RankRule("full"),
    "200KB": RankRule("bytes", 200_000.0),
    "1500KB": RankRule("bytes", 1_500_000.0),
}
OTHER_SPELLINGS = {"2*sqrt(n)": "2 sqrt(n)", " 2.0 sqrt(n) ": "2 sqrt(n)", "90 %": "90%", "1.5MB": "1500KB"}
OTHER_SPELLINGS |= {"0.2 MB": "200KB"}
NONE = ("", "sqrt", "sqrt(d)", "-1", "1.5", "0%", "101%", "0KB", "200kb", "nan%", "1e3", "-2 sqrt(n)", "all", "9" * 13)


def reply_bytes(rank: int) -> int:
    return 1000 + 300 * rank


@pytest.mark.parametrize("text", RULES)
def test_a_rule_is_written_as_it_is_read(text: str) -> None:
    assert RankRule.parse(text) == RULES[text] and str(RULES[text]) == text == rank_rule(text)


@pytest.mark.parametrize("text", OTHER_SPELLINGS)
def test_the_same_rule_is_always_the_same_string(text: str) -> None:
    assert rank_rule(text) == OTHER_SPELLINGS[text]


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_rule_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r'must be full, "sqrt\(n\)" or a multiple'):
        RankRule.parse(text)


@pytest.mark.parametrize("value", [True, 2.5, None, ["full"]])
def test_an_option_is_text_or_a_whole_number(value: object) -> None:
    assert rank_rule(64) == "64"
    with pytest.raises(ValueError, match="must be full"):
        rank_rule(value)


@given(n=st.integers(0, 10_000), full=st.integers(0, 2000), factor=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_a_root_is_rounded_and_never_more_than_there_is(n: int, full: int, factor: float) -> None:
    assert RankRule("root", factor).rank(n, full, reply_bytes) == min(round(factor * math.sqrt(n)), full)


@given(st.lists(st.floats(0.0, 1e6), max_size=30), st.floats(0.01, 1.0))
def test_a_share_takes_the_fewest_directions_that_keep_it(energies: list[float], share: float) -> None:
    energies = sorted(energies, reverse=True)
    rank = RankRule("share", share).rank(100, len(energies), reply_bytes, energies)
    total = math.fsum(energies)
    assert math.fsum(energies[:rank]) >= share * total * (1 - 1e-12)
    assert rank == 0 or math.fsum(energies[: rank - 1]) < share * total * (1 + 1e-12)


@given(full=st.integers(0, 100), kilobytes=st.integers(1, 40))
def test_a_budget_takes_as_many_directions_as_fit(full: int, kilobytes: int) -> None:
    rank = RankRule("bytes", 1000.0 * kilobytes).rank(50, full, reply_bytes)
    assert reply_bytes(rank) <= 1000 * kilobytes
    assert rank == full or reply_bytes(rank + 1) > 1000 * kilobytes


def test_a_budget_that_the_rows_alone_exceed_is_refused() -> None:
    rule = RankRule("bytes", 2000.0)
    rule.check_fits(2000)
    with pytest.raises(ValueError, match=r"at most 2,000 bytes \(rank 2KB\), got 2,001 without any direction"):
        rule.check_fits(2001)
    RankRule("full").check_fits(10**9)


@pytest.mark.parametrize(("rule", "rank"), [("full", 40), ("64", 40), ("7", 7), ("0", 0), ("50%", 40)])
def test_other_ranks(rule: str, rank: int) -> None:
    """A share of unknown energies needs all directions."""
    assert RankRule.parse(rule).rank(10, 40, reply_bytes) == rank
