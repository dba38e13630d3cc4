"""Work that is done side by side: the same bits on any number of threads, in order, and errors are said."""

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fedstats_app.base import threads
from fedstats_app.base.threads import (
    FEW_NUMBERS,
    Room,
    ahead,
    beside_each_other,
    num_threads,
    threads_worth,
    usable_cores,
)
from fedstats_app.methods import METHODS
from fedstats_app.statistics.collected import StatisticsSum
from tests.support.commands import output_of
from tests.support.compare import same_bits

NUMBER, CLASSES, DIM = 8, 6, 300


@pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("3,2", 3), ("", None), ("0", None), ("many", None)])
def test_threads_are_those_of_torch(asked: str, threads: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)

    assert num_threads() == (threads or usable_cores())


def test_a_container_s_memory_is_the_machine_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, limit = threads.machine_bytes(), tmp_path / "memory.max"
    monkeypatch.setattr(threads, "_LIMITS_OF_CONTAINERS", (tmp_path / "nothing", limit))
    found = []
    for text in ("max\n", "123456789\n", f"{2**62}\n"):
        limit.write_text(text, encoding="ascii")
        found.append(threads.machine_bytes())
    assert whole and found[0] == found[2] and found[0] >= whole and found[1] == 123456789


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process has all cores here")
@pytest.mark.parametrize("asked", ["", "2,1"])
def test_torch_itself_has_as_many_in_a_process_of_one_core(asked: str) -> None:
    code = "from fedstats_app.base.threads import *; import torch; print(num_threads(), torch.get_num_threads())"
    core = min(os.sched_getaffinity(0))
    env = {name: value for name, value in os.environ.items() if "_NUM_THREADS" not in name}
    env |= {"OMP_NUM_THREADS": asked} if asked else {}
    program = f"import os; os.sched_setaffinity(0, {{{core}}}); {code}"
    told = output_of([sys.executable, "-c", program], env=env).split()
    assert told[0] == told[1] == (asked[:1] or "1")


@pytest.mark.parametrize(("numbers", "expected"), [(FEW_NUMBERS - 1, 1), (FEW_NUMBERS, 3)])
def test_few_numbers_are_not_worth_a_second_thread(numbers: int, expected: int) -> None:
    torch.set_num_threads(3)
    with threads_worth(numbers):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_every_job_has_one_thread_of_torch(threads: int) -> None:
    torch.set_num_threads(threads)
    here, where = threading.get_ident(), set()

    def job(number: int) -> tuple[int, int]:
        where.add(threading.get_ident())
        return number, torch.get_num_threads()

    made = list(beside_each_other([lambda one=one: job(one) for one in range(7)]))  # type: ignore[misc]
    assert made == [(one, 1) for one in range(7)]
    assert (where == {here}) == (threads == 1) and len(where) <= threads
    assert torch.get_num_threads() == threads and not list(beside_each_other([]))


def test_jobs_run_at_the_same_time() -> None:
    torch.set_num_threads(2)
    both = threading.Barrier(2)
    assert sorted(beside_each_other([lambda: both.wait(60), lambda: both.wait(60)])) == [0, 1]


def test_results_come_before_all_jobs_have_begun() -> None:
    torch.set_num_threads(2)
    begun = []
    made = beside_each_other(lambda one=one: begun.append(one) for one in range(50))  # type: ignore[misc]
    next(made)
    assert len(begun) < 50
    made.close()  # type: ignore[attr-defined]
    assert len(begun) < 50 and torch.get_num_threads() == 2


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_more_jobs_are_asked_for_than_run(threads: int) -> None:
    torch.set_num_threads(threads)
    asked, done, most = [0], [0], [0]

    def job() -> None:
        done[0] += 1

    def jobs() -> Iterator[Callable[[], None]]:
        for _ in range(20):
            asked[0] += 1
            most[0] = max(most[0], asked[0] - done[0])
            yield job

    assert len(list(beside_each_other(jobs()))) == 20 and most[0] <= threads


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_done_ahead_comes_in_order_and_few_jobs_are_ahead(threads: int) -> None:
    begun, where = [], set()

    def job(number: int) -> int:
        begun.append(number)
        where.add(threading.get_ident())
        return number

    made = ahead((functools.partial(job, number) for number in range(100)), threads)
    for number in range(40):
        assert next(made) == number and len(begun) <= number + 1 + 2 * threads
    made.close()  # type: ignore[attr-defined]
    assert len(begun) <= 40 + 2 * threads and (where == {threading.get_ident()}) == (threads == 1)


def test_jobs_ahead_are_done_while_a_result_is_used() -> None:
    third = threading.Event()
    made = ahead([lambda: True, lambda: True, third.set, *[lambda: True] * 9], 2)
    assert next(made) and third.wait(60)
    made.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_job_ahead_fails_with_is_raised_in_its_place(threads: int) -> None:
    made = ahead([lambda: 1, lambda: 1 // 0, lambda: 3], threads)
    assert next(made) == 1
    with pytest.raises(ZeroDivisionError):
        next(made)


def test_room_is_given_to_those_who_fit_in_and_to_one_alone_whatever_it_takes() -> None:
    room, events = Room(10), list[str]()

    def large() -> None:
        with room.shared() as take:
            take(1000)
            events.append("large")

    with room.shared() as first, room.shared() as second:
        first(6)
        second(4)
        waits = threading.Thread(target=large)
        waits.start()
        waits.join(0.05)
        events.append("both")
    waits.join(60)
    assert events == ["both", "large"]
    with pytest.raises(ArithmeticError), room.shared() as take:
        take(10)
        raise ArithmeticError
    large()


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_job_fails_with_is_raised(threads: int) -> None:
    torch.set_num_threads(threads)

    def fails() -> None:
        raise ArithmeticError("no number")

    asked = []

    def jobs() -> Iterator[Callable[[], None]]:
        yield fails
        for number in range(20):
            asked.append(number)
            yield lambda: None

    with pytest.raises(ArithmeticError, match="no number"):
        list(beside_each_other([fails, lambda: None, lambda: None]))
    with pytest.raises(ArithmeticError, match="no number"):
        list(beside_each_other(jobs()))
    assert len(asked) < 20 and torch.get_num_threads() == threads


def test_heads_have_the_same_bits_on_any_number_of_threads() -> None:
    draw = torch.Generator().manual_seed(0)
    solved = []
    features = torch.randn(900, DIM, generator=draw).relu()
    labels = torch.randint(CLASSES, (900,), generator=draw)
    for number in (1, 3):
        torch.set_num_threads(number)
        heads = {}
        for method in [one.default() for one in METHODS.values()]:
            spec = method.specification
            total = StatisticsSum(
                CLASSES, DIM, gram=spec.gram, keep_rows=method.keeps_rows, scatter=spec.scatter is not None
            )
            for part in range(NUMBER):
                total.add(spec.from_features(features[part::NUMBER], labels[part::NUMBER], CLASSES))
            heads[method.name] = method.head(total)
        solved.append(heads)
    for name, head in solved[0].items():
        assert same_bits(head.weight, solved[1][name].weight) and same_bits(head.bias, solved[1][name].bias), name


def test_the_end_leaves_nothing_for_nanobind_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[bool] = []
    monkeypatch.setattr(threads.gc, "unfreeze", lambda: freed.append(True))
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    threads._thaw()
    assert not freed  # it takes a second
    monkeypatch.setitem(sys.modules, "triton", threads)
    threads._thaw()
    assert freed
