"""Threads of torch. Import before torch: those that wait for each other sleep instead of spinning.

By default OpenMP's threads burn their core while they wait. On a machine whose cores are shared with anything else, as
in a simulation or on a small device, the waiting thread then keeps the working one from running: with one other busy
process on two cores a forward pass was ten times slower. On an idle machine the difference is small.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

# Read by the OpenMP runtime when torch is loaded; whoever set it already knows better.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

Made = TypeVar("Made")


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


def beside_each_other(jobs: Sequence[Callable[[], Made]]) -> list[Made]:
    """Do independent work in as many threads of Python as torch has, each with one of torch's: the same bits on any.

    Torch leaves Python to others while it computes, and most factorisations use one core well and two badly.

    Parameters
    ----------
    jobs : sequence of callable
        The longest first. None may change what another reads.

    Returns
    -------
    list
        What each returned, in their order.

    Raises
    ------
    BaseException
        What the first of them in that order failed with; those that have not begun by then are left out.
    """
    import torch

    def alone(job: Callable[[], Made]) -> Made:
        with one_thread():
            return job()

    workers = min(torch.get_num_threads(), len(jobs))
    if workers < 2:
        return [alone(job) for job in jobs]
    from concurrent.futures import ThreadPoolExecutor

    pool, threads = ThreadPoolExecutor(workers, thread_name_prefix="fedstats-solving"), torch.get_num_threads()
    try:
        return [future.result() for future in [pool.submit(alone, job) for job in jobs]]
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # what threads that are yet to come start with
