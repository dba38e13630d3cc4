"""A folder that describes one of timm's networks, as timm saves it for the hub: config.json, weights, README.md.

Read here and not by timm, which takes from config.json where weights are and how they are read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from fedstats_app.backbones.arguments import Argument, checked_arguments
from fedstats_app.backbones.licences import Licence, first_known, licence_named, licence_of_card
from fedstats_app.backbones.state_files import read_state_file
from fedstats_app.backbones.weights import WeightsError

logger = logging.getLogger("fedstats_app")

# All that is taken of a pretrained_cfg: what images should look like, and what is the classifier.
_CONFIG_KEYS = (
    "input_size",
    "fixed_input_size",
    "interpolation",
    "crop_pct",
    "mean",
    "std",
    "pool_size",
    "first_conv",
    "classifier",
    "tag",
)


@dataclass(frozen=True)
class TimmFolder:
    """What describes a network of timm.

    Attributes
    ----------
    architecture : str
        timm's name.
    config : mapping
        What timm calls the pretrained configuration, without sources of weights.
    arguments : mapping
        For the constructor.
    identity : str
        The network's name wherever it was found.
    licence : Licence
        Of the weights.
    weights : callable
        Returns a state dict, and in words where it came from.
    """

    architecture: str
    config: Mapping[str, Any]
    arguments: Mapping[str, Argument]
    identity: str
    licence: Licence
    weights: Callable[[], tuple[Mapping[str, Tensor], str]]


def read_timm_folder(folder: Path, source: str) -> TimmFolder:
    """Read the folder's config.json; weights are read when they are asked for.

    Parameters
    ----------
    folder : Path
        Of this machine.
    source : str
        Where it came from, in words.

    Raises
    ------
    WeightsError
        If there is no config.json, or it describes no network of timm or one with arguments that may not be given.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise WeightsError(f"{str(folder)!r} is no folder of a model of timm: it has no config.json")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        architecture = content["architecture"]
        given = content.get("pretrained_cfg", content)
        arguments = checked_arguments(content.get("model_args") or {})
        config = {key: _tuples(given[key]) for key in _CONFIG_KEYS if key in given}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        of_transformers = "model_type" in path.read_text(encoding="utf-8", errors="replace")
        hint = " (a model of transformers is `vision:NAME`)" if of_transformers else ""
        raise WeightsError(f"{source}: config.json describes no network of timm: {error!r}{hint}") from error
    if not isinstance(architecture, str):
        raise WeightsError(f"{source}: config.json must name an architecture of timm, got {architecture!r}")
    if lacking := [key for key in ("input_size", "mean", "std") if key not in config]:
        logger.warning("%s: config.json does not say %s: timm's defaults are taken", source, ", ".join(lacking))
    licence = first_known(licence_of_card(folder), licence_named(given.get("license"), "the model's config.json"))
    return TimmFolder(architecture, config, arguments, architecture, licence, lambda: (read_state_file(folder), source))


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
