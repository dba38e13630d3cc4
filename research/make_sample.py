"""Draw the built-in sample from the official Fashion-MNIST files.

    python -m research.make_sample <folder of the four idx .gz files> <folder to write to>

The same files give the same sample, to the byte with the version of Pillow that README.md names.
"""

import argparse
import base64
import gzip
import io
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedstats_app.data.builtin import sheet_columns

SEED = 0
IMAGES_PER_SHEET = 1000
SAMPLES_PER_CLASS = {"train": 800, "test": 200}
_IDX_PREFIX = {"train": "train", "test": "t10k"}
_IDX_UINT8 = 8


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzip-compressed idx file of bytes.

    The format: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each dimension as a
    big-endian 32-bit integer, then the values.

    Raises
    ------
    ValueError
        If the file is not of this format, or not as long as it says.
    """
    content = gzip.decompress(path.read_bytes())
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UINT8:
        raise ValueError(f"{path}: an idx file of unsigned bytes begins with 00 00 08, got {content[:3].hex(' ')}")
    header_bytes = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:header_bytes], dtype=">u4"))
    values = np.frombuffer(content[header_bytes:], dtype=np.uint8)
    if values.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path}: the header says {shape} values, got {values.size}")
    return values.reshape(shape)


def draw_balanced(labels: NDArray[np.integer], per_class: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw as many samples of each class, without replacement and in random order.

    Parameters
    ----------
    labels : numpy.ndarray
        ``(n,)`` integers.
    per_class : int
        How many of each class.
    rng : numpy.random.Generator
        Decides.

    Returns
    -------
    numpy.ndarray
        ``(number of classes * per_class,)`` int64, indices into the labels; not sorted by class.

    Raises
    ------
    ValueError
        If a class has fewer.
    """
    drawn = []
    for class_id in np.unique(labels):
        of_class = np.flatnonzero(labels == class_id)
        if len(of_class) < per_class:
            raise ValueError(f"class {class_id} has {len(of_class)} samples, {per_class} are needed")
        drawn.append(rng.choice(of_class, size=per_class, replace=False))
    return rng.permutation(np.concatenate(drawn)).astype(np.int64)


def to_json(images: NDArray[np.uint8], labels: NDArray[np.integer], origin_indices: NDArray[np.int64]) -> str:
    """Lay images (n, height, width) out in one PNG, in JSON; the same version of Pillow gives the same text."""
    count, height, width = images.shape
    columns = sheet_columns(count)
    rows = -(-count // columns)
    tiles = np.zeros((rows * columns, height, width), dtype=np.uint8)
    tiles[:count] = images
    pixels = tiles.reshape(rows, columns, height, width).swapaxes(1, 2).reshape(rows * height, columns * width)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG", optimize=True)
    content = {
        "tile_height": height,
        "tile_width": width,
        "labels": labels.tolist(),
        "origin_indices": origin_indices.tolist(),
        "png_base64": base64.b64encode(stream.getvalue()).decode("ascii"),
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def make_sheets(idx_folder: Path, split: str, per_class: int, images_per_sheet: int) -> list[str]:
    """Draw one split's sample from the official files, and lay it out in sheets.

    Parameters
    ----------
    idx_folder : Path
        Holds ``{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz``.
    split : {"train", "test"}
        Which part.
    per_class : int
        How many images of each class.
    images_per_sheet : int
        How many images to a sheet; the last may have fewer.
    """
    images = read_idx(idx_folder / f"{_IDX_PREFIX[split]}-images-idx3-ubyte.gz")
    labels = read_idx(idx_folder / f"{_IDX_PREFIX[split]}-labels-idx1-ubyte.gz")
    rng = np.random.default_rng([SEED, len(labels)])
    indices = draw_balanced(labels, per_class, rng)
    parts = np.split(indices, range(images_per_sheet, len(indices), images_per_sheet))
    return [to_json(images[part], labels[part], part) for part in parts]


def main() -> None:
    """Write the sample's JSON files."""
    parser = argparse.ArgumentParser(description="Draw the built-in sample from the official Fashion-MNIST files.")
    parser.add_argument("idx_folder", type=Path, help="folder of the four official .gz files")
    parser.add_argument("output_folder", type=Path, help="folder to write train-*.json and test-*.json to")
    arguments = parser.parse_args()
    for split, per_class in SAMPLES_PER_CLASS.items():
        for number, sheet in enumerate(make_sheets(arguments.idx_folder, split, per_class, IMAGES_PER_SHEET)):
            path = arguments.output_folder / f"{split}-{number:02d}.json"
            path.write_text(sheet, encoding="ascii", newline="\n")
            print(path)


if __name__ == "__main__":
    main()
