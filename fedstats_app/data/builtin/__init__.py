"""The built-in sample: 10,000 images of Fashion-MNIST as text, for machines without a data set or a hub."""

import functools
import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.builtin.contact_sheet import ContactSheet
from fedstats_app.data.dataset import Dataset

CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_FOLDER = Path(__file__).parent


class SheetSource:
    """The images of one split of the sample."""

    def __init__(self, images: NDArray[np.uint8], origin_indices: NDArray[np.int64], split: str) -> None:
        self._images = images  # (n, 28, 28)
        self._origin_indices = origin_indices
        self._split = split

    def open(self, index: int) -> Image.Image:
        """Return a 28 x 28 grey image."""
        return Image.fromarray(self._images[index])

    def name(self, index: int) -> str:
        """Return the split and the number of the image in the official files."""
        return f"fashion-mnist/{self._split}/{self._origin_indices[index]}"


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
    sheets = [ContactSheet.from_json(text.decode("ascii")) for text in texts]
    return Dataset(
        name=f"builtin ({split})",
        class_names=CLASS_NAMES,
        labels=np.concatenate([sheet.labels for sheet in sheets]),
        fingerprint=hashlib.sha256(b"".join(hashlib.sha256(text).digest() for text in texts)).hexdigest(),
        source=SheetSource(
            np.concatenate([sheet.images for sheet in sheets]),
            np.concatenate([sheet.origin_indices for sheet in sheets]),
            split,
        ),
    )
