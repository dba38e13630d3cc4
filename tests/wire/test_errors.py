from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.wire import RejectedReply
from fedstats_app.wire.serving import MAX_REASON, clean_reason


@given(st.text(max_size=2000))
def test_a_reason_is_one_short_printable_line_that_utf8_takes(text: str) -> None:
    reason = clean_reason(text)

    assert len(reason) <= MAX_REASON and reason.isprintable()
    assert reason.encode("utf-8").decode("utf-8") == reason == clean_reason(reason)


@pytest.mark.parametrize("length", [MAX_REASON - 1, MAX_REASON, MAX_REASON + 1, 10**6])
def test_of_a_long_reason_both_ends_are_kept(length: int) -> None:
    text = "begin" + "." * (length - 8) + "end"

    reason = clean_reason(text)

    assert len(reason) == min(length, MAX_REASON) and reason.startswith("begin.") and reason.endswith(".end")
    assert reason == text or " ... " in reason


def test_a_traceback_with_colours_keeps_its_words() -> None:
    traceback = "\x1b[36mray::app()\x1b[39m\n  File 'x'\nValueError: no"

    assert clean_reason(traceback) == "ray::app() File 'x' ValueError: no"


def test_a_rejection_is_clean() -> None:
    assert str(RejectedReply("got 'x\ny'\x07")) == "got 'x y'?"
