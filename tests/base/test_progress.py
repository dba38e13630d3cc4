"""Lines of progress: what is done, how far it is, how long it will take, and never a long silence."""

import itertools
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
    assert said.longest_silence <= 10
    assert all(line.startswith("loading; ") for _, line in said.lines)
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


def test_what_is_within_counts_as_much_as_it_is(clock: Clock) -> None:
    said = Said(clock)
    with said.doing("personal models", 100) as step:
        step.at(10, within=40)
        with said.doing("{done} of {total} sites answered", 4) as clients:
            clock.sleep(40)
            clients.at(3)
            assert said.seconds_left == 60  # 40 of 100 parts are done
        clock.sleep(10)
        step.at(50)
        assert said.seconds_left == 50


def test_an_estimate_of_what_is_within_counts_where_the_whole_has_none(clock: Clock) -> None:
    said = Said(clock)
    with said.doing("evaluating"), said.doing("features of {done} of {total} test samples", 4000) as step:
        clock.sleep(10)
        step.at(1000)
        assert str(said) == "evaluating: features of 1,000 of 4,000 test samples; 10 s so far, about 30 s left"


def test_samples_are_counted_with_their_rate_and_an_estimate_that_leaves_out_what_was_there_already(
    clock: Clock,
) -> None:
    said, done = Said(clock), [0, 0]
    heard = dict[float, str]()
    with (
        said.heartbeat(),
        said.doing("statistics"),
        said.counting("images", 2000, lambda: (done[0], done[1])),
        said.doing("{done} of {total} sites answered", 10) as clients,
    ):
        clock.sleep(20)  # processes begin, networks are loaded
        assert str(said).startswith("statistics: features of 0 of 2,000 images: 0 of 10 sites answered; ")
        done[1] = 800
        for second in range(1, 41):
            done[0] += 16 if second % 2 else 24
            clock.sleep(1)
            heard[second] = str(said)
        assert "features of 856 of 2,000 images, 20 a second: 0 of 10" in heard[3]
        clients.at(5)
        clock.sleep(1)
        assert str(said) == (
            "statistics: features of 1,600 of 2,000 images, 20 a second: 5 of 10 sites answered; "
            "61 s so far, about 19 s left"
        )
    left = [float(line.split("about ")[1].split(" s left")[0]) for second, line in heard.items() if second > 6]
    assert len(left) == 34
    assert all(0 <= before - now <= 3 for before, now in itertools.pairwise(left))


def test_nothing_that_was_there_already_makes_an_estimate(clock: Clock) -> None:
    said = Said(clock)
    known = [0]
    with said.heartbeat(), said.counting("texts", 500, lambda: (0, known[0])):
        for known[0] in range(0, 500, 50):
            clock.sleep(1)
        assert str(said) == "features of 450 of 500 texts; 10 s so far"


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
