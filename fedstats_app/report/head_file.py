"""A classifier head as one safetensors file: float32 `weight` (C, d), float32 `bias` (C,), uint8 `present` (C,).

The header's metadata are strings. For the network: `backbone`, `backbone-weights`, `backbone-arguments`,
`backbone-pooling`, `backbone-features` (the layer that they come from, in words), `backbone-licence`,
`backbone-fingerprint`, `input-size`, `transform` (JSON), `sample-kind` ("image" or "text"),
`text-template` of a language model, `batch-norm` (whether GroupNorm is in its place) and `tuned-backbone` (the file of
weights that training changed). Of the head: `format`, `method`, `regulariser`,
`feature-map`, `feature-power` and `class-names` (JSON); where it was calibrated, `temperature`, by which scores are
divided before the
softmax, and `calibrated-on`, the samples that chose it, and `label-margins` (JSON), from which sets of classes follow;
`distance-limit`, beyond which a sample is unlike those of the training.
Of the run: `dataset`, `num-examples`, `num-clients`, `seed`,
`versions` (JSON); and `superseded` where a client or a class was taken out of it later.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.feature_map import MappedFeatures
from fedstats_app.base.files import read_tensors, tensors_to_bytes
from fedstats_app.heads import LinearHead

HEAD_FORMAT = "fedstats-head-2"
# Key in the header of a head that was replaced: why, and the folder of its successor.
SUPERSEDED = "superseded"
# Key in the header of what sets of classes with a promised coverage take.
LABEL_MARGINS = "label-margins"
# Key of the distance from the training samples that 99 % of test samples do not exceed.
DISTANCE_LIMIT = "distance-limit"
_DTYPES = {"weight": torch.float32, "bias": torch.float32, "present": torch.uint8}


def head_to_bytes(head: LinearHead, metadata: Mapping[str, str]) -> bytes:
    """Serialise a head; the same head and metadata give the same bytes, whatever the order of the metadata.

    Raises
    ------
    TypeError
        If a key or a value of `metadata` is not a string.
    ValueError
        If `format`, which is filled in, is another one, or a number is NaN or infinite in float32; a bias may be -inf
        for an absent class.
    """
    tensors = {key: getattr(head, key).to("cpu", dtype) for key, dtype in _DTYPES.items()}
    _check_values(tensors, "the head to save")
    if metadata.get("format", HEAD_FORMAT) != HEAD_FORMAT:
        raise ValueError(f"head metadata: format must be {HEAD_FORMAT!r} or left out, got {metadata['format']!r}")
    return tensors_to_bytes(tensors, {**metadata, "format": HEAD_FORMAT}, digest=True)


def read_head(path: Path) -> tuple[LinearHead, dict[str, str]]:
    """Read a head written by `head_to_bytes`, in float64 (the values are float32's), and its header's entries.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is no safetensors file, is damaged (its digest is checked), or not a head of this format.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no head at {path}")
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != HEAD_FORMAT:
        raise ValueError(f"{path}: format must be {HEAD_FORMAT!r}, got {metadata.get('format')!r}")
    _check_shapes(tensors, str(path))
    _check_values(tensors, str(path))
    head = LinearHead(
        weight=tensors["weight"].to(torch.float64),
        bias=tensors["bias"].to(torch.float64),
        present=tensors["present"].to(torch.bool),
    )
    return head, metadata


def head_files(run_folder: Path) -> list[Path]:
    """List the files of a run's heads, without those of tuned backbones."""
    return [path for path in sorted((run_folder / "heads").glob("*.safetensors")) if not path.name.endswith(SUFFIX)]


def _check_shapes(tensors: Mapping[str, Tensor], where: str) -> None:
    found = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()}
    shape = tuple(tensors["weight"].shape) if "weight" in tensors else ()
    shapes = {"weight": shape, "bias": shape[:1], "present": shape[:1]}
    if len(shape) != 2 or found != {key: (dtype, shapes[key]) for key, dtype in _DTYPES.items()}:
        raise ValueError(
            f"{where}: a head holds weight (C, d) float32, bias (C,) float32 and present (C,) uint8, got {found}"
        )


def _check_values(tensors: Mapping[str, Tensor], where: str) -> None:
    weight, bias, present = (tensors[key] for key in _DTYPES)
    if not bool(torch.isfinite(weight).all()):
        raise ValueError(f"{where}: every weight must be finite in float32, got NaN or an infinity")
    masked = (bias == -torch.inf) & (present == 0)
    if not bool((torch.isfinite(bias) | masked).all()):
        bad = (~(torch.isfinite(bias) | masked)).nonzero().flatten().tolist()
        raise ValueError(
            f"{where}: every bias must be finite in float32 (or -inf for an absent class), "
            f"but those of classes {bad} are {bias[bad].tolist()}"
        )


Normalisation = Literal["batch", "groupnorm"]

SUFFIX = ".backbone.safetensors"
FILE_KEY = "tuned-backbone"
NORMALISATION_KEY = "batch-norm"
PRECISION_KEY = "backbone-precision"
PATH_KEYS = ("backbone", "backbone-weights", "dataset")


def with_module(base: Backbone, module: nn.Module, weights_source: str) -> Backbone:
    """Put a tuned network of the same architecture behind the transform of the backbone that it was.

    The network is put in eval mode, frozen and moved to the device. The new backbone has a fingerprint of its own, and
    the architecture's name also where training started from random weights.
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
        feature_map=base.feature_map,
    )


def tuned_metadata(name: str, tuned: Backbone, normalisation: Normalisation) -> dict[str, str]:
    """Return the entries that lead from a head of this name to its tuned backbone, to be put over an untuned head's."""
    own = {"backbone-fingerprint": tuned.fingerprint, PRECISION_KEY: "float32"}  # as it was trained
    return {
        **own,
        "backbone": tuned.name,
        "backbone-weights": "",
        "input-size": str(tuned.input_size),
        FILE_KEY: f"{name}{SUFFIX}",  # relative to the head's folder, so that the run folder can be moved
        NORMALISATION_KEY: normalisation,
    }


def tuned_state(tuned: Backbone) -> dict[str, Tensor]:
    """Return the weights of a tuned backbone, by the names that they have without a map behind it."""
    module = tuned.module.mapped if isinstance(tuned.module, MappedFeatures) else tuned.module
    return module.state_dict()
