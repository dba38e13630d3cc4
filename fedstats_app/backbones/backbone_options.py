"""Options of the backbone. No torch is imported here."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from fedstats_app.backbones.engine import ENGINES, OPENVINO
from fedstats_app.backbones.names import (
    HUB,
    LOCAL,
    MINILM,
    MOST_PIXELS,
    POOLINGS,
    SENTENCE,
    TIMM,
    TINY_TEXT,
    TRANSFORMERS,
    VISION,
    arguments_text,
    is_folder_model,
    is_template,
    is_text_backbone,
    parse_arguments,
    parse_feature_map,
    split_names,
)
from fedstats_app.base.option import Check, Options, is_absolute, number, one_of, option, text, whole

MOST_JOINED = 3
# Between the arguments of two networks; a number may have a plus sign, too.
_ARGUMENTS = re.compile(r"\+(?=[a-z][a-z0-9_]*=|\+|$)")
BACKBONES = (
    "efficientnet_lite0",
    "squeezenet1_1",
    "mobilenet_v2",
    "resnet18",
    "resnet50",
    "efficientnet_b0",
    "vit_b_16",
    "vit_b_32",
    "tiny",
    "wide",
    MINILM,
    TINY_TEXT,
)

# Where the root of the features gains on average (research/regulariser.md).
_ROOTED = ("efficientnet_lite0", "squeezenet1_1")


def device_name(value: object) -> object:
    """Check for a device as torch names them, or auto."""
    if not isinstance(value, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
        raise ValueError("must be auto, cpu, cuda, cuda:N or mps")
    return value


def backbone_name(value: object) -> object:
    """Check for a network that can be loaded, or two or three joined by ``+``."""
    if len(split_names(str(value), ",")) > 1:
        raise ValueError("must be one backbone: only `fedstats run` in a simulation compares several, by commas")
    names = split_names(str(value))
    if len(names) > MOST_JOINED or len({*names}) < len(names):
        raise ValueError(f"must join at most {MOST_JOINED} different networks")
    prefixes = (TIMM, VISION, SENTENCE, TRANSFORMERS)
    for name in (network.removeprefix("random:") for network in names):
        if name.startswith(f"{TIMM}{LOCAL}") and not is_absolute(name.removeprefix(f"{TIMM}{LOCAL}")):
            raise ValueError(f"must name an absolute path after {TIMM}{LOCAL}")
        if name == f"{TIMM}{HUB}":
            raise ValueError(f"must name a model of the hub after {TIMM}{HUB}, such as {TIMM}{HUB}MahmoodLab/UNI")
        if not (name in BACKBONES or (name.startswith(prefixes) and name not in prefixes)):
            close = difflib.get_close_matches(name, BACKBONES, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            with_prefix = ", ".join(f"{prefix}NAME" for prefix in prefixes)
            raise ValueError(f"must be one of {', '.join(BACKBONES)}, {with_prefix} or random:NAME{hint}")
    if len({is_text_backbone(name) for name in names}) > 1:
        raise ValueError("must join networks of images or networks of texts, not both")
    return value


def network_arguments(value: object) -> object:
    """Check for arguments of a network, or of several joined by ``+``; equal ones become the same text."""
    if not isinstance(value, str):
        raise ValueError("must be text, such as img_size=224,init_values=1e-5")
    return "+".join(arguments_text(parse_arguments(part)) for part in _ARGUMENTS.split(value))


def channels(low: float, high: float) -> Check:
    """Return a check for one number, or one per channel, in (low, high]; equal ones become the same text."""

    def check(value: object) -> object:
        if value == "":
            return value
        try:
            numbers = [] if isinstance(value, bool) else [float(part) for part in str(value).split(",")]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 3) or not all(low < number <= high for number in numbers):
            raise ValueError(f"must be a number in ({low:g}, {high:g}], or three, separated by commas, or empty")
        return ",".join(str(number) for number in numbers)

    return check


def per_channel(values: str) -> tuple[float, float, float] | None:
    """Read such an option as values of red, green and blue; None if it is empty."""
    if not values:
        return None
    numbers = [float(number) for number in values.split(",")]
    red, green, blue = numbers if len(numbers) == 3 else 3 * numbers
    return red, green, blue


def text_template(value: object) -> object:
    """Check for a prompt around a text, or the empty text."""
    if not isinstance(value, str) or (value and not is_template(value)):
        raise ValueError("must hold {text} once, or {first} and {second}, and {mask} at most once, or be empty")
    return value


def feature_map(value: object) -> object:
    """Check for a map behind the network."""
    parse_feature_map(str(value))
    return value


def _has_poolings(name: str) -> bool:
    return is_text_backbone(name) or name.removeprefix("random:").startswith((TIMM, VISION))


def _given(pooling: str) -> str:
    return "" if pooling == "auto" else pooling


@dataclass(frozen=True)
class BackboneOptions(Options):
    """Backbone: which network makes the features, and how it is run."""

    backbone: str = option(
        "efficientnet_lite0",
        backbone_name,
        "or squeezenet1_1, mobilenet_v2, resnet18, resnet50, efficientnet_b0, vit_b_16, "
        "vit_b_32, timm:NAME, vision:NAME, random:NAME (also tiny, wide, tiny-text); for texts all-MiniLM-L6-v2, "
        "sentence:NAME, transformers:NAME; A+B = both side by side",
    )
    backbone_weights: str = option("", text, '"" = official | random | /PATH/TO/FILE (state dict) or FOLDER of a model')
    backbone_arguments: str = option(
        "", network_arguments, 'of timm\'s networks, such as "img_size=224,init_values=1e-5"'
    )
    backbone_pooling: str = option(
        "auto", one_of(*POOLINGS), "auto = the model's own | mean | cls, the first token | images: pooled | cls+mean"
    )
    feature_power: float | Literal["auto"] = option(
        "auto",
        number(0.0, 2.0, open_low=True, word="auto"),
        "0.5 = the root, scaled to length one; auto = 0.5 for efficientnet_lite0 and squeezenet1_1, else 1",
    )
    feature_map: str = option(
        "none",
        feature_map,
        "unit = length one | relu:D = random projection (FedCGS) | fourier:D:WIDTH = random Fourier (Fed3R-RF)",
    )
    input_size: int = option(
        0, whole(0, 1_000_000), "pixels, of texts tokens; 0 = the backbone's own, or 64 for builtin"
    )
    input_mean: str = option("", channels(-1.0, 2.0), '"0.5" or "0.49,0.48,0.45" (RGB); "" = the weights\' own')
    input_std: str = option("", channels(0.0, 10.0), "likewise")
    text_template: str = option(
        "", text_template, 'a prompt: "{text} It was {mask}."; of two columns: "{first}? {mask}, {second}"'
    )
    engine: str = option(
        "auto", one_of(*ENGINES), "auto = openvino if installed, on a CPU | torch | openvino | openvino-bf16"
    )
    batch_size: int | Literal["auto"] = option(
        16, whole(1, 4096, word="auto"), "per forward pass, decides the last bits; auto = by device"
    )
    device: str = option("auto", device_name, "auto | cpu | cuda | cuda:N | mps")
    autocast: str = option("none", one_of("none", "bf16", "fp16"), "none | bf16 | fp16")
    # The architecture's own normalisation layers, or GroupNorm in the place of BatchNorm: training asks for it.
    norm: Literal["batch", "group"] = "batch"

    @functools.cached_property
    def networks(self) -> tuple[Self, ...]:
        """Options of each network whose features are joined; of a single one these, of several without the map.

        Weights and arguments are each network's own; a pooling is for those that have several.

        Raises
        ------
        ValueError
            If there are weights or arguments for another number of networks.
        """
        if (number := len(names := split_names(self.backbone))) == 1:
            return (self,)
        weights = self.backbone_weights.split("+") if self.backbone_weights else [""] * number
        arguments = _ARGUMENTS.split(self.backbone_arguments) if self.backbone_arguments else [""] * number
        for key, given in (("backbone-weights", weights), ("backbone-arguments", arguments)):
            if len(given) != number:
                form = "+".join("ABC"[:number])
                raise ValueError(
                    f"{key}: must be {form}, one for each network of {self.backbone!r}, got {'+'.join(given)!r}"
                )
        pooled = [name for name in names if _has_poolings(name)] or names
        return tuple(
            replace(
                self,
                backbone=name,
                backbone_weights=own_weights,
                backbone_arguments=own_arguments,
                backbone_pooling=self.backbone_pooling if name in pooled else "auto",
                feature_map="none",
            )
            for name, own_weights, own_arguments in zip(names, weights, arguments, strict=True)
        )

    @property
    def power(self) -> float:
        """To which features are raised, 1 for as they are: "auto" knows the network's name alone."""
        if self.feature_power == "auto":
            return 0.5 if self.backbone in _ROOTED else 1.0
        return self.feature_power

    @property
    def expands_features(self) -> bool:
        """True if a map makes other features of the network's, perhaps more."""
        return self.feature_map not in ("none", "unit")

    @property
    def num_mapped_features(self) -> int:
        """Features of the map; 1 if their number is the network's."""
        return parse_feature_map(self.feature_map)[1] or 1

    @property
    def takes_text(self) -> bool:
        """True if the backbone is a language model."""
        return is_text_backbone(self.backbone)

    @property
    def has_own_size(self) -> bool:
        """True if model or arguments say how large its images are, so that small samples do not."""
        names = (name.removeprefix("random:") for name in split_names(self.backbone))
        return any(map(is_folder_model, names)) or "img_size=" in self.backbone_arguments

    def problems(self) -> list[str]:
        """Refuse options of texts for images, of images for texts, and what the network's kind has not."""
        name, text, with_it = self.backbone.removeprefix("random:"), self.takes_text, f"with backbone {self.backbone!r}"
        if len(split_names(self.backbone)) > 1:
            try:
                return list(dict.fromkeys(problem for network in self.networks for problem in network.problems()))
            except ValueError as error:
                return [str(error)]
        poolings = f"is for {TIMM}NAME, {VISION}NAME and texts"
        # Key, value if it is given, whether it may be, and for what it is.
        rules: list[tuple[str, object, bool, str]] = [
            ("backbone-arguments", self.backbone_arguments, name.startswith(TIMM), f"are for {TIMM}NAME"),
            ("backbone-pooling", _given(self.backbone_pooling), _has_poolings(name), poolings),
            ("text-template", self.text_template, text, "is for text backbones"),
            ("feature-power", "" if self.power == 1.0 else self.power, not text, "is for images"),
            ("input-mean", self.input_mean, not text, "is for images"),
            ("input-std", self.input_std, not text, "is for images"),
        ]
        problems = [
            f"{key}: {why}, got {value!r} {with_it}" for key, value, allowed, why in rules if value and not allowed
        ]
        poolings = "auto" if self.text_template else "auto, mean or cls"
        if text and self.backbone_pooling not in poolings.replace(" or", ",").split(", "):
            problems.append(f"backbone-pooling: must be {poolings} {with_it}, got {self.backbone_pooling!r}")
        if not text and self.input_size > MOST_PIXELS:
            problems.append(f"input-size: must be at most {MOST_PIXELS} {with_it}, got {self.input_size}")
        if self.engine.startswith(OPENVINO):
            with_it = f"with engine {self.engine!r}"
            if self.device not in ("auto", "cpu"):
                problems.append(f"device: must be auto or cpu {with_it}, got {self.device!r}")
            if self.autocast != "none":
                problems.append(f"autocast: must be none {with_it}: it is of torch, got {self.autocast!r}")
        return problems

    def conflicts(self, config: Any) -> Iterator[str]:
        """Refuse to train networks that are joined."""
        if len(split_names(self.backbone)) == 1:
            return
        tuning = config.run.fine_tune
        of_head = tuning in ("none", "probe") or (tuning == "fedmezo" and config.fedmezo.tune == "head")
        for key, value, allowed in (
            ("fine-tune", tuning, of_head),
            ("label-words", config.tuning.label_words, not config.tuning.label_words),
        ):
            if not allowed:
                yield f"{key}: of joined networks only a head is trained, got {value!r} with backbone {self.backbone!r}"
