"""Samples read and decoded by other threads while the network computes, in their order."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Samples that wait for the network, for each thread.
_WAITING = 4


def read_ahead(read: Callable[[int], T], indices: Iterable[int], threads: int) -> Iterator[Callable[[], T]]:
    """Call a function on every index, some of them ahead of whoever takes the results.

    Parameters
    ----------
    read : callable
        From an index to what is wanted; with several threads it is called by several at once.
    indices : iterable of int
        In the order in which results are wanted.
    threads : int
        That read ahead; 0 for none: everything is then read when it is taken.

    Yields
    ------
    callable
        Returns the result for the next index, or raises what the function raised.
    """
    if not threads:
        yield from (functools.partial(read, index) for index in indices)
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        try:
            for index in indices:
                waiting.append(pool.submit(read, index))
                if len(waiting) > _WAITING * threads:
                    yield waiting.popleft().result
            while waiting:
                yield waiting.popleft().result
        finally:  # whoever took the results has had enough
            for one in waiting:
                one.cancel()
