"""Settings of all tests, and the golden federations."""

import functools
import gc
import multiprocessing
import os
import sqlite3
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch.torch_version import TorchVersion

from fedstats_app.report.method_result import UNSCORED, MethodResult
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


def pytest_runtest_teardown() -> None:
    """Take back the threads that a test gave to torch."""
    torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Generator[None, int, int]:
    """Start one worker more for the extended tests: their federations wait for Flower much of the time."""
    cores = yield
    return cores + (config.option.markexpr == "extended")


TESTS = Path(__file__).parent
# One simulation of Flower's and one federation of real nodes belong to the default tests: green means that it works.
DEFAULT_RUNS = (
    "test_flwr_run.py::test_the_readme_command_gives_the_readme_table",
    "test_deployment_own_images.py::test_the_readme_s_commands_lead_from_folders_to_a_prediction",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as extended the tests of research and those that start processes; put long files first.

    First come the two default runs, then the files that lie beside the rooms: whole runs and federations, which wait
    while the rooms' tests compute. The large form of a long trial is left out unless `-m` names `slow`.
    """
    if torch.__version__ < TorchVersion("2.11"):
        for item in items:
            if "onnx" in item.nodeid or "test_export" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason="the extra export needs torch 2.11"))
    if "slow" not in config.option.markexpr:
        large = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=large)
        items[:] = [item for item in items if item not in large]
    for item in items:
        name = f"{item.path.relative_to(TESTS).as_posix()}::{item.name}"
        if name in DEFAULT_RUNS or not isinstance(item, pytest.Function):
            continue
        fixtures = [one.func for found in item._fixtureinfo.name2fixturedefs.values() for one in found]
        seen: set[int] = set()
        if name.startswith("research/") or any(starts_processes(made, seen) for made in (item.function, *fixtures)):
            item.add_marker("extended")
    items.sort(key=lambda item: (f"{item.path.name}::{item.name}" not in DEFAULT_RUNS, item.path.parent != TESTS))


def starts_processes(made: object, seen: set[int]) -> bool:
    """Return whether a function or class of the tests, or one that it names, uses subprocess or multiprocessing."""
    made = getattr(made, "__wrapped__", made)
    if id(made) in seen or not getattr(made, "__module__", "").startswith("tests."):
        return False
    seen.add(id(made))
    if isinstance(made, type):
        return any(starts_processes(member, seen) for member in vars(made).values())
    if not isinstance(made, FunctionType):
        return False
    codes = [made.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    named = [made.__globals__.get(name) for code in codes for name in code.co_names]
    if any(found is subprocess or found is multiprocessing for found in named):
        return True
    return any(starts_processes(found, seen) for found in named)


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
        measured = {
            **UNSCORED,
            "accuracy": accuracy,
            "macro_accuracy": accuracy,
            "per_class_accuracy": [accuracy, None],
        }
        measured |= {key: changes.pop(key) for key in UNSCORED if key in changes}
        values: dict[str, Any] = {"method": method, "quality": measured, "num_examples": 8000, "num_clients": 100}
        values |= {"uplink_bytes": 1_700_000, "wire_bytes": 1_800_000, "solve_seconds": 0.25, "regulariser": "none"}
        return MethodResult(**{**values, **changes})

    return make
