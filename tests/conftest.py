"""Settings of all tests, and the golden federations."""

from __future__ import annotations

import functools
import gc
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from fedstats_app.report.method_result import MethodResult
from tests.support.flower import Simulation, simulation
from tests.support.golden import FEDERATIONS, Federation
from tests.support.small_sample import use_an_eighth

# Time limits of single examples say nothing on a shared machine. In CI the same examples are drawn every time.
settings.register_profile(
    "fedstats",
    max_examples=25,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fedstats")

# Matrices here are tiny: on a busy machine threads that wait for each other make them twenty times slower.
torch.set_num_threads(1)
# Importing all tests makes no garbage, and looking for it takes seconds in every worker.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage from now on, but not in what has been imported."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the large form of long trials, unless `-m` asks for `slow`; the small form runs with all others.

    Of end-to-end tests a file with a single one comes first: a worker that has one left is given the next file at once,
    and in the end the other would wait for it.
    """
    if "slow" not in config.option.markexpr:
        large = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=large)
        items[:] = [item for item in items if item not in large]
    if config.option.markexpr == "end_to_end":
        number = Counter(item.path for item in items if item.get_closest_marker("end_to_end"))
        items.sort(key=lambda item: number[item.path] > 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let captured logs travel from a worker: file names that are no UTF-8 stand in some, and would end it."""
    report = yield
    report.sections = [(title, text.encode("utf-8", "backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep features, and the ledgers of nodes, out of the user's own cache."""
    os.environ.setdefault("FEDSTATS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session", autouse=True)
def little_is_trained_on() -> None:
    """Give runs in this process an eighth of the built-in sample: what they show does not ask for 10,000 images."""
    use_an_eighth()


@pytest.fixture(scope="session", autouse=True)
def auto_is_the_cpu() -> Iterator[None]:
    """On a machine with a GPU, what this process computes is still compared with the CPU's tensors and bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


class _Unforced(sqlite3.Connection):
    """A connection that leaves it to the system when a ledger's lines reach the disk."""

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return super().execute(statement.replace("synchronous = full", "synchronous = off"), *values)


@pytest.fixture(scope="session", autouse=True)
def disks_are_not_waited_for() -> None:
    """Leave out fsync, which takes longer than a small run's computation; end-to-end tests' processes force it."""
    os.fsync = lambda descriptor: None
    sqlite3.connect = functools.partial(sqlite3.connect, factory=_Unforced)


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    """Flower's simulation with a home of its own."""
    with simulation(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture(params=FEDERATIONS)
def federation(request: pytest.FixtureRequest) -> Federation:
    """Each golden federation in turn."""
    return Federation(request.param)


@pytest.fixture
def make_result() -> Callable[..., MethodResult]:
    """Make a method's result of plausible values, some of them changed."""

    def make(method: str, accuracy: float | None = 0.75, **changes: Any) -> MethodResult:
        values: dict[str, Any] = {
            "method": method,
            "accuracy": accuracy,
            "macro_accuracy": accuracy,
            "per_class_accuracy": [accuracy, None],
            "num_examples": 8000,
            "num_clients": 100,
            "uplink_bytes": 1_700_000,
            "wire_bytes": 1_800_000,
            "solve_seconds": 0.25,
            "regulariser": "none",
        }
        return MethodResult(**{**values, **changes})

    return make
