"""A backbone that training changed: its weights lie beside the head, so that the run folder stands on its own.

The file is the network's state dict as `load_backbone` reads it; what else is needed is in the head's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from torch import nn

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.engine import BFLOAT16
from fedstats_app.backbones.names import TextOptions, in_folder
from fedstats_app.backbones.options import per_channel
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.data.paths import without_folders
from fedstats_app.storage.json_digest import read_json_file

Normalisation = Literal["batch", "groupnorm"]

SUFFIX = ".backbone.safetensors"
FILE_KEY = "tuned-backbone"
NORMALISATION_KEY = "batch-norm"
ARGUMENTS_KEY, IMAGE_POOLING_KEY = "backbone-arguments", "backbone-pooling"
PRECISION_KEY = "backbone-precision"
PATH_KEYS = ("backbone", "backbone-weights", "dataset")
POOLING_KEY, TEMPLATE_KEY = "text-pooling", "text-template"
# From the metadata's word, which is that of the run's configuration, to load_backbone's.
_NORMS: dict[str, Literal["batch", "group"]] = {"batch": "batch", "groupnorm": "group"}


def with_module(base: Backbone, module: nn.Module, weights_source: str) -> Backbone:
    """Put a tuned network behind the transform of the backbone that it was.

    Parameters
    ----------
    base : Backbone
        Its transform, batch size, device and precision are taken; it is not changed.
    module : nn.Module
        Of the same architecture. It is put in eval mode, frozen and moved to the device.
    weights_source : str
        Where the weights came from, in words.

    Returns
    -------
    Backbone
        With a fingerprint of its own; under the architecture's name, also where training started from random weights.
    """
    return Backbone(
        base.name.removeprefix("random:"),
        module,
        base.transform,
        weights_source=weights_source,
        batch_size=base.batch_size,
        device=str(base.device),
        autocast=base.autocast,
        channels_last=base.channels_last,
        identity=base.identity.removeprefix("random:"),
        language_head=base.language_head,
        licence=base.licence,
        features=base.features,
    )


def tuned_metadata(name: str, tuned: Backbone, normalisation: Normalisation) -> dict[str, str]:
    """Return a head's metadata entries that lead to its tuned backbone.

    Parameters
    ----------
    name : str
        The head's.
    tuned : Backbone
        From `with_module`.
    normalisation : {"batch", "groupnorm"}
        Whether it has the architecture's own normalisation layers or GroupNorm in place of BatchNorm.

    Returns
    -------
    dict of str to str
        To be put over those of an untuned head.
    """
    return {
        "backbone": tuned.name,
        "backbone-weights": "",
        "backbone-fingerprint": tuned.fingerprint,
        "input-size": str(tuned.input_size),
        FILE_KEY: f"{name}{SUFFIX}",  # relative to the head's folder, so that the run folder can be moved
        NORMALISATION_KEY: normalisation,
        PRECISION_KEY: "float32",  # as it was trained
    }


def with_paths(head: Path, metadata: Mapping[str, str]) -> dict[str, str]:
    """Return a head's metadata with whole paths where the configuration of its run has them.

    A head may be handed on, so that its header has only the last part of a path; config.json stays.
    """
    config = head.parent.parent / "config.json"
    settings = read_json_file(config).get("run_config", {}) if config.is_file() else {}
    given = {key: str(settings.get(key, "")) for key in PATH_KEYS}
    return {**metadata, **{key: path for key, path in given.items() if without_folders(path) == metadata.get(key)}}


def load_backbone_of(
    head: Path, metadata: Mapping[str, str], *, weights: str | None, batch_size: int, device: str, engine: str = "torch"
) -> Backbone:
    """Load the backbone that a head's metadata name: a tuned one from the head's folder, else an official one.

    Parameters
    ----------
    head : Path
        The head's file.
    metadata : mapping of str to str
        With `backbone` and `input-size`; maybe with `backbone-weights`, `backbone-arguments`, `backbone-pooling`,
        `input-mean`, `input-std`, `tuned-backbone`, `batch-norm`, `text-pooling`, `text-template` and
        `backbone-precision`.
    weights : str or None
        A weight file, or a model's folder, to take instead of what is named there.
    batch_size, device, engine
        As for `fedstats_app.backbones.load_backbone`; a head of features in bfloat16 takes the engine that makes them.

    Raises
    ------
    WeightsError
        If weights are missing, are damaged or do not fit.
    ValueError
        If an entry has a value that is not allowed.
    """
    tuned, metadata = metadata.get(FILE_KEY, ""), with_paths(head, metadata)
    if tuned and Path(tuned).name != tuned:
        raise ValueError(f"{head}: {FILE_KEY} must be a file name without a folder, got {tuned!r}")
    name, recorded = metadata["backbone"], str(head.with_name(tuned)) if tuned else metadata.get("backbone-weights", "")
    if tuned and weights is not None and Path(weights).is_dir():
        # The model's folder: its tokenizer or its config.json are not in the run folder, the tuned weights are.
        folder = Path(weights)
        name, weights = in_folder(name, folder), None
    return load_backbone(
        name,
        weights=recorded if weights is None else weights,
        input_size=int(metadata["input-size"]),
        mean=per_channel(metadata.get("input-mean", "")),
        std=per_channel(metadata.get("input-std", "")),
        batch_size=batch_size,
        device=device,
        engine=BFLOAT16 if metadata.get(PRECISION_KEY) == "bfloat16" else engine,
        norm=_norm(metadata.get(NORMALISATION_KEY, "batch")),
        arguments=metadata.get(ARGUMENTS_KEY, ""),
        pooling=metadata.get(IMAGE_POOLING_KEY, "auto"),
        text=TextOptions(metadata.get(POOLING_KEY, "auto"), metadata.get(TEMPLATE_KEY, "")),  # type: ignore[arg-type]  # checked there
    )


def _norm(normalisation: str) -> Literal["batch", "group"]:
    if normalisation not in _NORMS:
        raise ValueError(f"{NORMALISATION_KEY} must be one of {', '.join(_NORMS)}, got {normalisation!r}")
    return _NORMS[normalisation]
