"""What a simulation will need is loaded while its server waits for SuperNodes, which takes seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.data.clients import partitions
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.settings.node_config import NodeConfig

logger = logging.getLogger("fedstats_app")

# Nothing is fetched, and no files of a user are read, for a run whose nodes may turn out to have data of their own.
WARMED_UP = ("builtin",)


@contextmanager
def warmed_up(config: AppConfig) -> Iterator[None]:
    """Load the backbone and draw the partitions in a thread of their own; at the end of the block both are there.

    What draws plots is loaded too, if the block has not ended by then: nothing waits for it before the heads are there.
    What goes wrong goes wrong again where it is said whose mistake it is.

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
    import fedstats_app.report.plots.write  # noqa: F401  # matplotlib takes a second to load
