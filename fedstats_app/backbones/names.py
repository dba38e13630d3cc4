"""Names that stand for many networks, and the options of texts. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

TIMM = "timm:"
# timm's own words for a model on the hub, and for one in a folder of this machine.
HUB, LOCAL = "hf-hub:", "local-dir:"
# Image encoders in the layout of transformers; `transformers:` is for texts.
VISION = "vision:"
RANDOM = "random:"
# Which of an image network's outputs are the features.
POOLINGS = ("auto", "pooled", "cls", "mean", "cls+mean")

# The sentence encoder whose weights come with pip, and one of two small layers for tests.
MINILM = "all-MiniLM-L6-v2"
TINY_TEXT = "tiny-text"
SENTENCE, TRANSFORMERS = "sentence:", "transformers:"
Pooling = Literal["auto", "mean", "first"]
TEXT_SLOT, MASK_SLOT = "{text}", "{mask}"
# Of a text of two columns, which is a line each: its first line, and the rest.
PAIR_SLOTS = "{first}", "{second}"
_ALLOWED = f"{TEXT_SLOT} once, or {' and '.join(PAIR_SLOTS)} once each, and {MASK_SLOT} at most once"


def is_folder_model(name: str) -> bool:
    """Return whether the image network of this name is described by a folder, here or on a hub."""
    return name.startswith((f"{TIMM}{HUB}", f"{TIMM}{LOCAL}", VISION))


def in_folder(name: str, folder: Path) -> str:
    """Return the name of the same model in a folder of this machine."""
    prefixes = {TIMM: f"{TIMM}{LOCAL}", VISION: VISION, TRANSFORMERS: TRANSFORMERS}
    found = next((local for prefix, local in prefixes.items() if name.startswith(prefix)), SENTENCE)
    return f"{found}{folder.expanduser().absolute()}"


def is_text_backbone(name: str) -> bool:
    """Return whether a backbone of this name, ``random:`` before it or not, takes texts."""
    plain = name.removeprefix("random:")
    return plain in (MINILM, TINY_TEXT) or plain.startswith((SENTENCE, TRANSFORMERS))


def is_template(template: str) -> bool:
    """Return whether this is a prompt around a text, or around the two lines of one."""
    slots = [template.count(slot) for slot in (TEXT_SLOT, *PAIR_SLOTS)]
    return slots in ([1, 0, 0], [0, 1, 1]) and template.count(MASK_SLOT) <= 1


@dataclass(frozen=True)
class TextOptions:
    """How the vectors of a text's tokens become its features.

    Attributes
    ----------
    pooling : {"auto", "mean", "first"}
        Their mean, or the first one. "auto" is what a sentence encoder's folder says, and the mean for other models.
    template : str
        "" for none; else a prompt around ``{text}``, or around ``{first}`` and ``{second}``, the first line of a text
        and the rest: features are then the vector from which the language model would tell the word at ``{mask}``
        (masked models), or the word that comes next where there is no ``{mask}`` (causal).

    Raises
    ------
    ValueError
        If the pooling is another, the template does not hold these once and ``{mask}`` at most once, or both are given.
    """

    pooling: Pooling = "auto"
    template: str = ""

    def __post_init__(self) -> None:
        if self.pooling not in get_args(Pooling):
            raise ValueError(f"text pooling must be one of {', '.join(get_args(Pooling))}, got {self.pooling!r}")
        if not self.template:
            return
        if not is_template(self.template):
            raise ValueError(f"a text template must hold {_ALLOWED}, got {self.template!r}")
        if self.pooling != "auto":
            raise ValueError(f"with a template the features are one token's: pooling must be auto, got {self.pooling}")
