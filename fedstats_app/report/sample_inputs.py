"""What a user hands to a classifier - paths, images, texts - as the samples that its backbone takes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.data import DatasetError, Sample, to_rgb
from fedstats_app.data.folder import read_text

SampleLike = str | os.PathLike[str] | Image.Image
_ONE = (str, os.PathLike, Image.Image)


def is_one(samples: SampleLike | Iterable[SampleLike]) -> bool:
    """Return whether this is a single sample rather than several."""
    return isinstance(samples, _ONE)


def read_samples(samples: SampleLike | Iterable[SampleLike], backbone: Backbone) -> Iterator[Sample]:
    """Read samples one by one, so that many fit in memory.

    Parameters
    ----------
    samples : one of them, or iterable
        For an image network PIL images and paths of image files. For a language model texts, and paths of text files as
        `pathlib.Path`: a str is the text itself.
    backbone : Backbone
        Which takes the one or the other.

    Raises
    ------
    FileNotFoundError, ValueError
        If a file does not exist or cannot be read; the message names it.
    TypeError
        If something is of another type.
    """
    for sample in [samples] if isinstance(samples, _ONE) else samples:
        yield _text(sample) if backbone.kind == "text" else _image(sample)


def _text(sample: SampleLike) -> str:
    if isinstance(sample, str):
        return sample
    if isinstance(sample, Image.Image):
        raise TypeError("this head classifies texts, got an image")
    if not isinstance(sample, os.PathLike):
        raise TypeError(f"a text must be a str, or the Path of a text file, got {type(sample).__name__}")
    path = Path(sample)
    if not path.is_file():
        raise FileNotFoundError(f"no text at {path}")
    try:
        return read_text(path)
    except (OSError, DatasetError) as error:
        raise ValueError(f"{path} is not a readable text: {error}") from error


def _image(sample: SampleLike) -> Image.Image:
    if isinstance(sample, Image.Image):
        return to_rgb(sample)
    if not isinstance(sample, (str, os.PathLike)):
        raise TypeError(f"an image must be a path or a PIL image, got {type(sample).__name__}")
    path = Path(sample)
    if not path.is_file():
        raise FileNotFoundError(f"no image at {path}")
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except (OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a readable image: {error}") from error
