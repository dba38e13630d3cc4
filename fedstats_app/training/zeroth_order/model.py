"""The model of a FedMeZO training as every node and the server build it: from the same parts, to the same bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedstats_app.heads import LinearHead
from fedstats_app.training.lora import add_lora
from fedstats_app.training.model import TunedModel
from fedstats_app.training.zeroth_order.directions import Directions
from fedstats_app.training.zeroth_order.replica import Replica
from fedstats_app.training.zeroth_order.selection import tuned_names
from fedstats_app.training.zeroth_order.setup import DTYPES, MezoSetup


def build_model(
    setup: MezoSetup, start: Mapping[str, Tensor], module: nn.Module, feature_dim: int, device: torch.device
) -> TunedModel:
    """Return the model at the start, in the setup's dtype.

    Parameters
    ----------
    setup : MezoSetup
        Of the training.
    start : mapping
        ``head.weight`` (C, D) and ``head.bias`` (C,), float32 or float64, finite.
    module : nn.Module
        The backbone's network; copied where it is tuned, and left alone otherwise.
    feature_dim : int
        Its features' d.
    device : torch.device
        Where the model is to be.

    Raises
    ------
    ValueError
        If the start does not fit the backbone and the number of classes.
    """
    request = setup.request
    dim = request.feature_map.output_dim(feature_dim)
    shapes = {"head.weight": (request.num_classes, dim), "head.bias": (request.num_classes,)}
    for name, shape in shapes.items():
        if name not in start or tuple(start[name].shape) != shape:
            got = tuple(start[name].shape) if name in start else "none"
            raise ValueError(f"{name}: must have shape {shape}, got {got}")
    if setup.tuned == "lora":
        module = copy.deepcopy(module)
        add_lora(module, rank=setup.lora_rank, alpha=setup.lora_alpha)
    model = TunedModel.of(
        replace(request, batch_norm="frozen"), LinearHead(start["head.weight"], start["head.bias"]), module
    )
    # In one layout: a direction's numbers belong to the elements in the order of a contiguous tensor.
    model = model.to(device, DTYPES[setup.dtype]).to(memory_format=torch.contiguous_format)
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
    )
