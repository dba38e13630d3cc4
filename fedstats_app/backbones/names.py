"""Names that stand for many networks, templates of texts and the arguments of networks. No torch is imported here.

Arguments, such as ``img_size=224,init_values=1e-5``, reach the constructor of a network of timm. Nothing that names a
file or an address, or chooses weights, is among them, whether a run-config gives it or the config.json of a model's
folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

TIMM = "timm:"
# timm's own words for a model on the hub, and for one in a folder of this machine.
HUB, LOCAL = "hf-hub:", "local-dir:"
# Image encoders in the layout of transformers; `transformers:` is for texts.
VISION = "vision:"
RANDOM = "random:"
# Side of an image, at most.
MOST_PIXELS = 4096
# Which of an image network's outputs are the features.
POOLINGS = ("auto", "pooled", "cls", "mean", "cls+mean")

# The sentence encoder whose weights come with pip, and one of two small layers for tests.
MINILM = "all-MiniLM-L6-v2"
TINY_TEXT = "tiny-text"
SENTENCE, TRANSFORMERS = "sentence:", "transformers:"
TEXT_SLOT, MASK_SLOT = "{text}", "{mask}"
# Of a text of two columns, which is a line each: its first line, and the rest.
PAIR_SLOTS = "{first}", "{second}"


def split_names(names: str, separator: str = "+") -> tuple[str, ...]:
    """Split backbones by ``+``, which joins their features, or by the comma of a comparison; paths may have either."""
    return tuple(re.split(rf"[{separator}](?=[\w.-]+(?:[:+,]|$))", names))


def is_folder_model(name: str) -> bool:
    """Return whether the image network of this name is described by a folder, here or on a hub."""
    return name.startswith((f"{TIMM}{HUB}", f"{TIMM}{LOCAL}", VISION))


def in_folder(name: str, folder: Path) -> str:
    """Return the name of the same model in a folder of this machine."""
    prefixes = {TIMM: f"{TIMM}{LOCAL}", VISION: VISION, TRANSFORMERS: TRANSFORMERS}
    found = next((local for prefix, local in prefixes.items() if name.startswith(prefix)), SENTENCE)
    return f"{found}{folder.expanduser().absolute()}"


def is_text_backbone(name: str) -> bool:
    """Return whether a backbone of this name, ``random:`` before it or not, takes texts; of joined ones the first."""
    plain = split_names(name)[0].removeprefix("random:")
    return plain in (MINILM, TINY_TEXT) or plain.startswith((SENTENCE, TRANSFORMERS))


def is_template(template: str) -> bool:
    """Return whether this is a prompt around a text, or around the two lines of one."""
    slots = [template.count(slot) for slot in (TEXT_SLOT, *PAIR_SLOTS)]
    return slots in ([1, 0, 0], [0, 1, 1]) and template.count(MASK_SLOT) <= 1


Argument = int | float | bool | str | list[int] | list[float]

# timm's own parameters that read files, load weights or change what comes out; the rest is the constructor's.
_REFUSED = re.compile(
    r"pretrained.*|checkpoint_path|cache_dir|scriptable|exportable|no_jit|features_only|feature_cfg|out_indices|pruned"
    r"|model_cfg|model_name|device|dtype|kwargs.*"
)
_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_INT = re.compile(r"[+-]?\d{1,9}")
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.?\d+)([eE][+-]?\d{1,3})?")


# A Gram matrix of this dimension is 8 GiB in float64.
MAX_MAPPED_FEATURES = 32_768


def parse_feature_map(text: str) -> tuple[str, int, float]:
    """Read "none", "unit", "relu:D" or "fourier:D:WIDTH": the kind, D (0 if it is the network's) and the width.

    "unit" scales features to length 1. "relu:D" is relu(f R) with R (d, D) ~ N(0, 1/d). "fourier:D:WIDTH" is
    sqrt(2/D) cos(f Omega^T + u) with Omega (D, d) ~ N(0, 1/WIDTH^2) and u uniform in [0, 2 pi), which approximates a
    Gaussian kernel of that width.

    Raises
    ------
    ValueError
        If it is of another form, or a number out of range.
    """
    kind, *numbers = text.split(":")
    try:
        if len(numbers) != {"none": 0, "unit": 0, "relu": 1, "fourier": 2}[kind]:
            raise ValueError
        number, width = int(numbers[0]) if numbers else 0, float(numbers[1]) if len(numbers) > 1 else 1.0
        if (numbers and not 1 <= number <= MAX_MAPPED_FEATURES) or not 0.0 < width < math.inf:
            raise ValueError
    except (KeyError, ValueError):
        raise ValueError(
            f"must be none, unit, relu:D or fourier:D:WIDTH with D from 1 to {MAX_MAPPED_FEATURES} and a width above 0"
        ) from None
    return kind, number, width


def parse_arguments(text: str) -> dict[str, Argument]:
    """Read ``key=value,key=value``; values are whole numbers, numbers, true, false or words (``global_pool=token``).

    The result, in the order of keys, is without ``num_classes=0`` and ``in_chans=3``, which hold in any case. A
    ValueError refuses another form, a key that stands there twice, and one that may not be given.
    """
    found: dict[str, object] = {}
    for item in text.split(",") if text.strip() else []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not value:
            raise ValueError(f"must be key=value pairs separated by commas, {item.strip()!r} is none")
        if key in found:
            raise ValueError(f"must name each argument once, {key!r} stands there twice")
        found[key] = _value(key, value)
    if found.get("num_classes", 0) != 0:
        raise ValueError(f"must keep num_classes=0 (the head is this app's), got {found['num_classes']!r}")
    return checked_arguments(found)


def checked_arguments(given: Mapping[str, object]) -> dict[str, Argument]:
    """Return arguments that may be given to a network, in the order of their keys; a ValueError refuses others.

    They are ``model_args`` of a config.json, where null stands for the network's default, or what
    :func:`parse_arguments` read.
    """
    checked: dict[str, Argument] = {}
    for key, value in sorted(given.items()):
        if not _KEY.fullmatch(key) or _REFUSED.fullmatch(key):
            raise ValueError(f"must be arguments of a network's constructor, {key!r} is not one that may be given")
        if key == "in_chans" and value not in (None, 3):
            raise ValueError(f"must keep in_chans=3 (images are RGB), got {value!r}")
        if value is None or key in ("num_classes", "in_chans"):
            continue
        numbers = all(isinstance(entry, int | float) for entry in (value if isinstance(value, list) else [value]))
        if not numbers and not (isinstance(value, str) and (not value or _WORD.fullmatch(value))):
            raise ValueError(f"must have a number, true, false or a word as {key}, {value!r} is none")
        checked[key] = value  # type: ignore[assignment]  # one of Argument: checked above
    return checked


def arguments_text(arguments: Mapping[str, Argument]) -> str:
    """Return one text for equal arguments, whatever their order: what fingerprints and records hold."""
    words = {True: "true", False: "false"}
    texts = {key: words[value] if isinstance(value, bool) else str(value) for key, value in arguments.items()}
    return ",".join(f"{key}={value}" for key, value in sorted(texts.items()))


def _value(key: str, text: str) -> Argument:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    kinds: dict[type[int | float | str], re.Pattern[str]] = {int: _INT, float: _FLOAT, str: _WORD}
    for kind, pattern in kinds.items():
        if pattern.fullmatch(text):
            return kind(text)
    raise ValueError(f"must have a number, true, false or a word as {key}, {text!r} is none")
