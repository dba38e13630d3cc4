"""What a simulation will need is loaded while its server waits for SuperNodes, which takes seconds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedstats_app.backbones.loading import loaded_backbone
from fedstats_app.config import AppConfig, NodeConfig
from fedstats_app.data.clients import partitions

logger = logging.getLogger("fedstats_app")

# Nothing is fetched, and no files of a user are read, for a run whose nodes may turn out to have data of their own.
WARMED_UP = ("builtin",)


@contextmanager
def warmed_up(config: AppConfig) -> Iterator[None]:
    """Load the backbone and draw the partitions in a thread of their own; at the end of the block both are there.

    What goes wrong goes wrong again where it is said whose mistake it is.

    Parameters
    ----------
    config : AppConfig
        Of the run.
    """
    if config.data.dataset not in WARMED_UP:
        yield
        return
    thread = threading.Thread(target=_load, args=(config,), name="fedstats-warm-up", daemon=True)
    thread.start()
    yield
    thread.join()


def _load(config: AppConfig) -> None:
    try:
        partitions(config.data, config.partition, config.run.seed)
        backbone = loaded_backbone(config.backbone_for(own_data=False), NodeConfig().engine_root(config.cache))
        backbone.engine_in_words  # noqa: B018  # asked for the first time, it may take an export
    except Exception as error:  # noqa: BLE001  # see above
        logger.debug("nothing was warmed up: %s", error)
