"""What a run asks of this machine: memory given back, time that clients will take, loading while nodes come."""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.measurements import seconds_per_sample
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data.clients import partitions
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

logger = logging.getLogger("fedstats_app")

# Nothing is fetched, and no files of a user are read, for a run whose nodes may turn out to have data of their own.
WARMED_UP = ("builtin",)
# Forward and backward pass through the backbone.
TRAINING_PASSES = 3
_TIMED_SECONDS = 0.1


def give_back_memory() -> None:
    """Return to the system what this process has freed, where the C library is GNU's; elsewhere do nothing.

    GNU's keeps what threads free, for each thread apart. A server that goes through large tensors in one thread after
    another is several times as large then as all that it holds.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # no such library or function; on Windows None is no library
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim


def expected_seconds(backbone: Backbone, clients: Mapping[int, int], passes: float, *, simulated: bool) -> float:
    """Return about how long clients will compute, 0 where that cannot be guessed: a text's length decides.

    In a simulation they share this machine, and their samples count one after another; elsewhere they work side by
    side, and the one with most samples counts, as if its machine were as fast as this one.

    Parameters
    ----------
    backbone : Backbone
        The run's.
    clients : mapping
        From client to its number of samples.
    passes : float
        Forward passes that every sample takes.
    simulated : bool
        Whether clients share this machine.
    """
    if backbone.kind != "image" or not clients or not passes:
        return 0.0
    number = sum(clients.values()) if simulated else max(clients.values())
    seconds = seconds_per_sample(backbone, backbone.transform.blank(), _TIMED_SECONDS)
    return seconds * passes * number


@contextmanager
def warmed_up(config: AppConfig) -> Iterator[None]:
    """Load the backbone and draw the partitions in a thread of their own; at the end of the block both are there.

    What draws plots is loaded too, if the block has not ended by then: nothing waits for it before the heads are there.
    Errors are raised again by the main thread, which says whose mistake they are.

    Parameters
    ----------
    config : AppConfig
        Of the run.
    """
    if config.data.dataset not in WARMED_UP:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_load, args=(config, over), name="fedstats-warm-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
    thread.join()


def _load(config: AppConfig, over: threading.Event) -> None:
    try:
        partitions(config.data, config.partition, config.run.seed)
        backbone = loaded_backbone(config.backbone_for(own_data=False), NodeConfig().engine_root(config.cache))
        backbone.engine_in_words  # noqa: B018  # asked for the first time, it may take an export
        if config.run.plots and not over.is_set():
            _load_plots()
    except Exception as error:  # noqa: BLE001  # see above
        logger.debug("nothing was warmed up: %s", error)


def _load_plots() -> None:
    import fedstats_app.report.plots.first_stage  # noqa: F401  # matplotlib takes a second to load
