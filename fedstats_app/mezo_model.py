"""The model of a FedMeZO training as every node and the server build it: from the same parts, to the same bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.heads import LinearHead
from fedstats_app.mezo_state import MezoState
from fedstats_app.training.lora import add_lora
from fedstats_app.training.model import TunedModel
from fedstats_app.training.zeroth_order.directions import Directions
from fedstats_app.training.zeroth_order.replica import Replica
from fedstats_app.training.zeroth_order.selection import tuned_names
from fedstats_app.wire.mezo_setup import DTYPES, MezoSetup, read_setup


def build_model(setup: MezoSetup, start: Mapping[str, Tensor], backbone: Backbone) -> TunedModel:
    """Return the model at the start, in the setup's dtype, on the backbone's device.

    Parameters
    ----------
    setup : MezoSetup
        Of the training.
    start : mapping
        ``head.weight`` (C, D) and ``head.bias`` (C,), float32 or float64, finite.
    backbone : Backbone
        Copied where it is tuned, and left alone otherwise.

    Raises
    ------
    ValueError
        If the start does not fit the backbone and the number of classes.
    """
    request = setup.request
    dim = request.feature_map.output_dim(backbone.feature_dim)
    shapes = {"head.weight": (request.num_classes, dim), "head.bias": (request.num_classes,)}
    for name, shape in shapes.items():
        if name not in start or tuple(start[name].shape) != shape:
            got = tuple(start[name].shape) if name in start else "none"
            raise ValueError(f"{name}: must have shape {shape}, got {got}")
    module = None if setup.tuned == "head" else backbone.module
    if module is not None and setup.tuned == "lora":
        module = copy.deepcopy(module)
        add_lora(module, rank=setup.lora_rank, alpha=setup.lora_alpha)
    model = TunedModel(
        LinearHead(start["head.weight"], start["head.bias"]),
        backbone=module,
        feature_map=None if module is None else request.feature_map,
        tune=request.tune,
        tune_bias=request.tune_bias,
        temperature=request.temperature,
        batch_norm="frozen",
    )
    # In one layout: a direction's numbers belong to the elements in the order of a contiguous tensor.
    model = model.to(backbone.device, DTYPES[setup.dtype]).to(memory_format=torch.contiguous_format)
    with torch.no_grad():  # a float64 start keeps all its digits, which TunedModel rounds to float32
        model.head.weight.copy_(start["head.weight"])
        model.head.bias.copy_(start["head.bias"])
    return model


def make_replica(setup: MezoSetup, model: TunedModel) -> Replica:
    """Return the replica that a model at the start is, with what is tuned of it.

    Raises
    ------
    ValueError
        If nothing of the model fits what is to be tuned.
    """
    names = tuned_names(model, setup.tuned)
    if not setup.request.tune_bias:
        names = tuple(name for name in names if name != "head.bias")
    return Replica(
        model,
        names,
        num_directions=setup.num_directions,
        epsilon=setup.epsilon,
        directions=Directions(setup.distribution),
        pool=setup.pool,
    )


def replay(folder: Path, backbone: Backbone) -> Replica:
    """Return the tuned model that a run's log makes of its start: the same bits as every node's.

    Parameters
    ----------
    folder : Path
        ``mezo/NAME`` of a run folder.
    backbone : Backbone
        The run's.

    Raises
    ------
    ValueError
        If the folder holds no start, or one that is damaged or of another backbone.
    """
    state = MezoState(folder)
    kept = state.load_start()
    if kept is None:
        raise ValueError(f"{folder} must hold the start of a training by FedMeZO, sound, and does not")
    setup = read_setup(kept[0])
    if setup.request.backbone_fingerprint not in ("", backbone.fingerprint):
        raise ValueError(
            f"{folder}: the backbone must have fingerprint {setup.request.backbone_fingerprint[:16]}, "
            f"got {backbone.name} with {backbone.fingerprint[:16]}"
        )
    replica = make_replica(setup, build_model(setup, kept[1], backbone))
    replica.apply(state.load_log(setup.num_directions))
    return replica
