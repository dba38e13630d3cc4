"""The built-in sample: 10,000 images of Fashion-MNIST as text, for machines without a data set or a hub.

A Flower app's bundle carries text files only, so the sample is contact sheets: JSON files with one PNG of a thousand
tiles each, which compresses better than a thousand PNG files. `research/make_sample.py` wrote them.
"""

import base64
import functools
import hashlib
import io
import json
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.dataset import Dataset, SampleSource

CLASS_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_FOLDER = Path(__file__).parent


@functools.lru_cache(maxsize=2)
def load_builtin(split: str) -> Dataset:
    """Load the built-in sample of Fashion-MNIST (MIT licence, see README.md beside this file).

    8,000 training and 2,000 test images of 28 x 28 grey pixels, 800 and 200 of each of the 10 classes, in random order,
    drawn from the official training and test sets. Read once per process.

    Parameters
    ----------
    split : {"train", "test"}
        Which part.

    Raises
    ------
    FileNotFoundError
        If the files are not beside this module.
    """
    files = sorted(_FOLDER.glob(f"{split}-*.json"))
    if not files:
        raise FileNotFoundError(f"the built-in sample's files {split}-*.json are not in {_FOLDER}")
    texts = [file.read_bytes() for file in files]
    images, labels, origins = (np.concatenate(parts) for parts in zip(*map(read_sheet, texts), strict=True))
    return Dataset(
        name=f"builtin ({split})",
        class_names=CLASS_NAMES,
        labels=labels,
        fingerprint=hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).hexdigest(),
        source=SampleSource(
            lambda index: Image.fromarray(images[index]), lambda index: f"fashion-mnist/{split}/{origins[index]}"
        ),
    )


def read_sheet(text: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Read a contact sheet.

    Returns
    -------
    images : numpy.ndarray
        ``(n, height, width)`` uint8.
    labels : numpy.ndarray
        ``(n,)`` int64.
    origin_indices : numpy.ndarray
        ``(n,)`` int64, where each image stands in the official files.
    """
    content = json.loads(text)
    height, width, count = content["tile_height"], content["tile_width"], len(content["labels"])
    columns = sheet_columns(count)
    with Image.open(io.BytesIO(base64.b64decode(content["png_base64"], validate=True))) as image:
        pixels = np.asarray(image)
    tiles = pixels.reshape(-1, height, columns, width).swapaxes(1, 2).reshape(-1, height, width)
    labels, origins = (np.array(content[key], dtype=np.int64) for key in ("labels", "origin_indices"))
    return np.ascontiguousarray(tiles[:count]), labels, origins


def sheet_columns(count: int) -> int:
    """Return how many of a sheet's tiles stand side by side: as near to a square as whole rows allow."""
    return max(1, math.isqrt(count))
