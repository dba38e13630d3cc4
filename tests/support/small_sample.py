"""An eighth of the built-in sample in its place, for whole runs."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedstats_app.client import site
from fedstats_app.data import clients, loading
from fedstats_app.data.builtin import load_builtin
from fedstats_app.data.dataset import Dataset
from fedstats_app.data.subset import at_most_per_class


@functools.cache
def _eighth(split: str) -> Dataset:
    dataset = load_builtin(split)
    return dataset.subset(at_most_per_class(dataset.labels, 100 if split == "train" else 25, seed=0))


def use_an_eighth() -> None:
    """Give this process, from now on, 100 training and 25 test images of each class as the data set ``builtin``."""
    _use(_eighth)


@contextmanager
def whole_sample() -> Iterator[None]:
    """Give this process all 10,000 images for a while."""
    _use(load_builtin)
    try:
        yield
    finally:
        use_an_eighth()


def _use(load: Callable[[str], Dataset]) -> None:
    loading.load_builtin = load  # type: ignore[assignment]  # lru_cache's own type
    for kept in (clients.training_set, clients.partitions, site._split):
        kept.cache_clear()
