"""The fits at a small size: a line per question, and an exponent is that of the seconds."""

from __future__ import annotations

import pytest

from research.benchmarks.cost import Question, Size


def test_the_exponent_is_that_of_the_seconds() -> None:
    question = Question("", "K", lambda size, _: 3.0 * size.clients**2.5, "fedncm", "clients", (2, 5, 40), 1)
    assert question.exponent() == pytest.approx(2.5)


def test_a_reply_of_every_client_is_made() -> None:
    strategy, replies, seconds = Size(clients=3, classes=5, features=16).messages("fed3r")
    assert [strategy.collection.fold(1, reply)[0].outcome for reply in replies] == ["merged"] * 3 and seconds > 0
