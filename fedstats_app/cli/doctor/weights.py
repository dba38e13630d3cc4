"""Whether the network's weights are on this machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import loaded_backbone
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.cli.finding import Finding
from fedstats_app.settings.app_config import AppConfig


def check_weights(config: AppConfig, *, own_data: bool, weights: str) -> tuple[Finding, Backbone | None]:
    """Load the network as a run would, but without any download, and tell its fingerprint.

    Parameters
    ----------
    config : AppConfig
        Of the run.
    own_data : bool
        Whether this is a node with data of its own.
    weights : str
        The node's own path to the weights, "" for the run's.
    """
    started = time.perf_counter()
    try:
        with offline():
            backbone = loaded_backbone(config.backbone_for(own_data=own_data, weights=weights))
    except (WeightsError, ValueError, ModuleNotFoundError) as error:
        advice = "name a file of this network in backbone-weights, or start a run once where downloads are possible"
        return Finding("backbone", "FAIL", str(error), advice), None
    seconds = time.perf_counter() - started
    size = f"at {backbone.input_size} pixels" if backbone.kind == "image" else f"up to {backbone.input_size} tokens"
    message = (
        f"{backbone.name} {size}, {backbone.feature_dim} features ({backbone.features}), on {backbone.device}; "
        f"weights: {backbone.weights_source}, licence {backbone.licence.name}; fingerprint "
        f"{backbone.fingerprint[:16]}; loaded in {seconds:.1f} s"
    )
    if warnings := backbone.licence.warnings:
        return Finding("backbone", "warning", message, " ".join(warnings)), backbone
    return Finding("backbone", "ok", message), backbone


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Forbid downloads of weights and data for a while, as somebody without a network would."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
