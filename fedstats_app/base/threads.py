"""Threads of torch, and its imports. Import before torch: threads that wait for each other sleep instead of spinning.

By default OpenMP's threads burn their core while they wait. On a machine whose cores are shared with anything else, as
in a simulation or on a small device, the waiting thread then keeps the working one from running: with one other busy
process on two cores a forward pass was ten times slower. On an idle machine the difference is small.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import TypeVar

# Read by the OpenMP runtime when torch is loaded; a value that is already set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

Made = TypeVar("Made")

# Tells this process from others, whatever machine they run on, and says nothing else of it.
PROCESS = secrets.randbits(62) + 1

# As a container sees them, of the two versions of Linux's control groups.
_LIMITS_OF_CONTAINERS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

# Eight megabytes of float64.
FEW_NUMBERS = 2**20


def machine_bytes() -> int | None:
    """Return the memory of this machine, or of its container; None where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return None
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    limits = [machine]
    for file in _LIMITS_OF_CONTAINERS:
        with contextlib.suppress(OSError, ValueError):  # "max" is none
            limits.append(int(file.read_text(encoding="ascii")))
    return min(limits)


def share_of_memory(parts: int) -> int:
    """Return the bytes of one of as many equal parts of the memory, taken for 8 GiB where the system does not tell."""
    return (machine_bytes() or 2**33) // parts


@contextlib.contextmanager
def lasting_imports() -> Iterator[None]:
    """Search for no garbage until what comes with these imports is there, and leave it out of every later search.

    Torch and Flower make hundreds of thousands of objects. To search them again and again while they are imported, and
    to take them apart when the process ends, took two of the six seconds of processor time that a ServerApp needs to
    start and end.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@atexit.register
def _thaw() -> None:
    """Let garbage be found at the end where triton, which torchvision loads, prints a line for whatever is left."""
    if "triton" in sys.modules:
        gc.unfreeze()


def num_threads() -> int:
    """Return the threads that torch has in this process, without importing it: OMP_NUM_THREADS, or the usable cores."""
    setting = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(setting) if setting.isdecimal() and int(setting) else usable_cores()


def usable_cores() -> int:
    """Return the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: the last bits of a factorisation depend on the number of threads, unlike a product's.

    The machine that makes a factor is to make the same one again, whatever else it does. Other threads of Python keep
    the number that they have.
    """
    import torch  # what only wants the setting above goes without

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def threads_worth(numbers: int) -> Iterator[None]:
    """Let torch use one thread for few numbers: to wake another takes longer, by far if no core is free for it."""
    with contextlib.nullcontext() if numbers >= FEW_NUMBERS else one_thread():
        yield


def beside_each_other(jobs: Iterable[Callable[[], Made]], most: int = sys.maxsize) -> Iterator[Made]:
    """Do independent work in as many threads of Python as torch has, each with one of torch's: the same bits on any.

    Torch leaves Python to others while it computes, and most factorisations and small networks use one core well and
    two badly.

    Parameters
    ----------
    jobs : iterable of callable
        The longest first. None may change what another reads. Each is asked for when a thread is free for it, so that
        no more of them are in memory than run. One alone runs in the caller's thread.
    most : int
        That run at the same time, at least 1.

    Yields
    ------
    object
        What each returned, in their order.

    Raises
    ------
    BaseException
        What the first of them in that order failed with; those that have not begun by then are left out.
    """
    import torch

    threads = torch.get_num_threads()
    workers = min(threads, most, len(jobs) if isinstance(jobs, Sized) else most)
    if workers < 2:
        for only in jobs:
            with one_thread():
                made = only()
            yield made
        return
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    # One pool for all: what a thread has freed stays its own, and others' threads are not to take as much again.
    pool = ThreadPoolExecutor(workers, "fedstats-threads", lambda: compute_with(1))
    begun: deque[Future[Made]] = deque()
    running: set[Future[Made]] = set()
    try:
        waiting = iter(jobs)
        while (job := next(waiting, None)) is not None:
            begun.append(pool.submit(job))
            running.add(begun[-1])
            del job
            if len(running) == workers:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                if any(future.exception() is not None for future in ended):
                    break
            while begun and begun[0].done():
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # what threads that are yet to come start with


def ahead(jobs: Iterable[Callable[[], Made]], threads: int) -> Iterator[Made]:
    """Do jobs that use nothing of torch's threads, such as reading files, before their results are taken.

    Parameters
    ----------
    jobs : iterable of callable
        At most ``2 * threads`` have begun or wait with a result.
    threads : int
        Threads of Python; with 1 a job is done in the caller's thread, when its result is taken.

    Yields
    ------
    object
        What each returned, in their order; what one of them failed with is raised in its place.
    """
    if threads == 1:
        yield from (job() for job in jobs)
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads, "fedstats-ahead")
    begun: deque[Future[Made]] = deque()
    try:
        for job in jobs:
            begun.append(pool.submit(job))
            if len(begun) == 2 * threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Room:
    """Memory that threads share: they wait until theirs is free, and one alone has whatever it takes.

    Parameters
    ----------
    size : int
        In any unit.
    """

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def shared(self) -> Iterator[Callable[[int], None]]:
        """Give a function that takes an amount, once, and give that back at the end."""
        mine = 0

        def take(amount: int) -> None:
            nonlocal mine
            with self._changed:
                self._changed.wait_for(lambda: not self._taken or self._taken + amount <= self._size)
                self._taken += amount
                mine = amount

        try:
            yield take
        finally:
            with self._changed:
                self._taken -= mine
                self._changed.notify_all()


def compute_with(threads: int) -> None:
    """Give this thread of Python a number of torch's."""
    import torch

    torch.get_num_threads()  # called for the first time, torch sets it to what another thread has last set
    torch.set_num_threads(threads)
