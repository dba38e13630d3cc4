"""The start head is the most accurate one, whatever a single node says; phases follow each other without a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.report.state import best_head

TEN = dict.fromkeys(range(10), 50)
GOOD, BAD = dict.fromkeys(range(10), 0.9), dict.fromkeys(range(10), 0.6)


def pooled(by_client: dict[str, dict[int, float]], weights: dict[int, int]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: sum(weights[k] * one[k] for k in one) / total for name, one in by_client.items()}


def test_where_the_server_evaluated_it_is_the_most_accurate() -> None:
    assert best_head({"fedncm": 0.5, "fed3r": 0.7}, {}, {}) == "fed3r"


@pytest.mark.parametrize("samples", [50, 140, 50_000])
def test_one_node_that_forges_its_evaluation_does_not_choose(samples: int) -> None:
    by_client = {"fedncm": BAD | {3: 1.0}, "fed3r": GOOD | {3: 0.0}}
    weights = TEN | {3: samples}

    assert best_head(pooled(by_client, weights), by_client, weights) == "fed3r"


values = st.floats(0.0, 1.0)


@given(st.lists(st.tuples(values, values), min_size=4, max_size=8), values, values, st.integers(1, 10**6))
def test_the_head_of_all_others_is_chosen(
    scores: list[tuple[float, float]], low: float, high: float, samples: int
) -> None:
    honest = {client: (max(pair), min(pair) / 2) for client, pair in enumerate(scores)}
    liar, weights = len(scores), dict.fromkeys(range(len(scores)), 10) | {len(scores): samples}
    by_client = {
        "better": {client: one for client, (one, _) in honest.items()} | {liar: low},
        "worse": {client: other for client, (_, other) in honest.items()} | {liar: high},
    }
    gaps = sorted(one - other for one, other in honest.values())
    chosen = best_head(pooled(by_client, weights), by_client, weights)

    # Where one honest client alone makes the difference, it is as little a choice of the others.
    assert chosen == "better" or gaps[-1] >= sum(gaps[:-1])
