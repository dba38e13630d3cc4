"""Frozen pre-trained networks, each with its own transform and fingerprint: images or texts in, features out."""

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.normalisation import group_norm
from fedstats_app.backbones.registry import available_backbones, load_backbone
from fedstats_app.backbones.text import TextOptions, with_folder
from fedstats_app.backbones.transform import ImageTransform
from fedstats_app.backbones.weights import WeightsError
from fedstats_app.training.lora import add_lora

__all__ = [
    "Backbone",
    "ImageTransform",
    "TextOptions",
    "WeightsError",
    "add_lora",
    "available_backbones",
    "group_norm",
    "load_backbone",
    "with_folder",
]
