"""The backbone of a run, loaded once per process."""

from __future__ import annotations

import functools
import logging
import time
from pathlib import Path

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.options import BackboneOptions, per_channel
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.text import TextOptions

logger = logging.getLogger("fedstats_app")


@functools.lru_cache(maxsize=1)
def loaded_backbone(options: BackboneOptions, engine_cache: Path | None = None) -> Backbone:
    """Return a backbone as its options say; those of a run are :meth:`fedstats_app.settings.AppConfig.backbone_for`.

    Parameters
    ----------
    options : BackboneOptions
        As they are used.
    engine_cache : Path, optional
        Folder of the caches, for networks exported to an engine.
    """
    started = time.perf_counter()
    backbone = load_backbone(
        options.backbone,
        weights=options.backbone_weights,
        input_size=options.text_max_length if options.takes_text else options.input_size,
        mean=per_channel(options.input_mean),
        std=per_channel(options.input_std),
        batch_size=options.batch_size,
        device=options.device,
        autocast=options.autocast,
        channels_last=options.channels_last,
        norm=options.norm,
        text=TextOptions(options.text_pooling, options.text_template),
        arguments=options.backbone_arguments,
        pooling=options.backbone_pooling,
        engine=options.engine,
        engine_cache=engine_cache,
    )
    logger.info("loaded %r in %.1f s", backbone, time.perf_counter() - started)
    return backbone
