"""Lines of progress: what is done, how far it is, how long it will take, and never a long silence."""

import threading

import pytest

from fedstats_app.base import progress as module
from fedstats_app.base.progress import LONGEST_SILENCE, Progress
from tests.support.clock import Clock, Said


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("seconds", [LONGEST_SILENCE - 0.5, 9.0, 1000.0])
def test_no_silence_is_longer_than_ten_seconds_whatever_blocks(clock: Clock, seconds: float) -> None:
    said = Said(clock)
    with said.heartbeat(), said.doing("loading"):
        clock.sleep(seconds)
    assert said.longest_silence <= 10 and all(line.startswith("loading; ") for _, line in said.lines)
    assert len(said.lines) == seconds // LONGEST_SILENCE


def test_steps_within_steps_give_one_line_and_one_estimate(clock: Clock) -> None:
    said = Said(clock)
    with said.doing("training", 4) as rounds:
        clock.sleep(30)
        rounds.at(1, "round {now} of {total}")
        with said.doing("{done} of {total} sites answered", 10) as clients:
            clock.sleep(15)
            clients.at(5)
            # A round and a half in 45 s; two and a half are left.
            assert str(said) == "round 2 of 4: 5 of 10 sites answered; 45 s so far, about 75 s left"
            clock.sleep(20)
            assert said.seconds_left == 55
            clock.sleep(56)
            # Later than was thought: nobody knows.
            assert str(said) == "round 2 of 4: 5 of 10 sites answered; 2 min so far"
    assert (str(said), said.seconds_left) == ("working; 2 min so far", None)


def test_an_estimate_of_what_is_within_counts_where_the_whole_has_none(clock: Clock) -> None:
    said = Said(clock)
    with said.doing("evaluating"), said.doing("features of {done} of {total} test samples", 4000) as step:
        clock.sleep(10)
        step.at(1000)
        assert str(said) == "evaluating: features of 1,000 of 4,000 test samples; 10 s so far, about 30 s left"


def test_a_step_that_is_closed_late_takes_no_other_with_it(clock: Clock) -> None:
    said = Said(clock)
    outer, inner = said.doing("outer"), said.doing("inner")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert str(said).startswith("inner; ")
    inner.__exit__(None, None, None)
    assert str(said).startswith("working; ")


def test_results_that_come_fast_are_said_now_and_then(clock: Clock) -> None:
    said = Said(clock)
    with said.heartbeat():
        for number in range(1, 31):
            said.now_and_then(f"round {number}", in_any_case=number == 30)
            clock.sleep(1)
    assert [line for _, line in said.lines] == ["round 1", *(f"round {n}" for n in range(6, 30, 5)), "round 30"]


def test_the_thread_says_something_while_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_PER_BEAT", 0.005)
    monkeypatch.setattr(module, "LONGEST_SILENCE", 0.0)
    lines, heard = list[str](), threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        heard.set()
        raise OSError("disk full")  # ends no thread

    progress = Progress(write)
    with progress.heartbeat(), progress.doing("solving"):
        for _ in range(2):
            assert heard.wait(30)
            heard.clear()
    assert all(line.startswith("solving; 0") for line in lines)
    assert not any(thread.name == "fedstats-progress" for thread in threading.enumerate())
