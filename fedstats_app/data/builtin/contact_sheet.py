"""Contact sheets: many small grey images in one PNG, inside a JSON file.

A Flower app's bundle carries text files only, so the built-in sample is text. One sheet of a thousand tiles compresses
better than a thousand PNG files, and a person can look at it.
"""

import base64
import dataclasses
import io
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


@dataclasses.dataclass(frozen=True, eq=False)
class ContactSheet:
    """Small grey images with their labels.

    Attributes
    ----------
    images : numpy.ndarray
        ``(n, height, width)`` uint8.
    labels : numpy.ndarray
        ``(n,)`` int64.
    origin_indices : numpy.ndarray
        ``(n,)`` int64, where each image stands in the data set that it was drawn from.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    origin_indices: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        n = len(self.images)
        if self.images.dtype != np.uint8 or self.images.ndim != 3 or n == 0:
            raise ValueError(
                f"images must be (n, height, width) uint8, n > 0, got {self.images.dtype} {self.images.shape}"
            )
        if self.labels.shape != (n,) or self.origin_indices.shape != (n,):
            raise ValueError(
                f"{n} images need as many labels and origin indices, got {self.labels.shape} and "
                f"{self.origin_indices.shape}"
            )

    def to_json(self) -> str:
        """Return the sheet as JSON text; the same sheet gives the same text with the same version of Pillow."""
        count, height, width = self.images.shape
        columns = _sheet_columns(count)
        rows = -(-count // columns)
        tiles = np.zeros((rows * columns, height, width), dtype=np.uint8)
        tiles[:count] = self.images
        pixels = tiles.reshape(rows, columns, height, width).swapaxes(1, 2).reshape(rows * height, columns * width)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, format="PNG", optimize=True)
        content = {
            "tile_height": height,
            "tile_width": width,
            "labels": self.labels.tolist(),
            "origin_indices": self.origin_indices.tolist(),
            "png_base64": base64.b64encode(stream.getvalue()).decode("ascii"),
        }
        return json.dumps(content, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ContactSheet":
        """Read a sheet back.

        Raises
        ------
        ValueError
            If the text is not what `to_json` writes.
        """
        content: dict[str, Any] = json.loads(text)
        missing = {"tile_height", "tile_width", "labels", "origin_indices", "png_base64"} - content.keys()
        if missing:
            raise ValueError(f"a contact sheet needs the keys {sorted(missing)} as well, got {sorted(content)}")
        height, width = int(content["tile_height"]), int(content["tile_width"])
        labels = np.array(content["labels"], dtype=np.int64)
        columns = _sheet_columns(len(labels))
        rows = -(-len(labels) // columns)
        with Image.open(io.BytesIO(base64.b64decode(content["png_base64"], validate=True))) as image:
            pixels = np.asarray(image)
        if pixels.shape != (rows * height, columns * width):
            raise ValueError(
                f"{len(labels)} tiles of {height} x {width} are a sheet of {(rows * height, columns * width)} pixels, "
                f"got {pixels.shape}"
            )
        tiles = pixels.reshape(rows, height, columns, width).swapaxes(1, 2).reshape(rows * columns, height, width)
        return cls(
            images=np.ascontiguousarray(tiles[: len(labels)]),
            labels=labels,
            origin_indices=np.array(content["origin_indices"], dtype=np.int64),
        )


def _sheet_columns(count: int) -> int:
    """Return how many tiles stand side by side: as near to a square as whole rows allow."""
    return max(1, math.isqrt(max(count, 1)))
