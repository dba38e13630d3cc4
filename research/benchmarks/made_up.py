"""A federation that has only the sizes of its clients in common with a real one, for measuring at scale.

    python -m research.benchmarks.made_up --sizes /data/client_sizes.csv --classes 1203 /data/made-up

It writes ``train.parquet`` and ``test.parquet`` into a folder: images of 8 x 8 pixels, a label and a column ``client``.
The file of sizes has the columns ``client,num_images``, a line per client; the line of ``test``, if there is one, is
the size of the test split. Every client draws its labels and images by its place in the file, so that the clients after
it change nothing.
"""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from research.benchmarks.lines import parser_of

TEST = "test"
# An image is its class's pattern with as much noise.
SIDE, NOISE = 8, 48.0
# A client's n samples are of about CONCENTRATION * ln(1 + n / CONCENTRATION) classes: as in iNaturalist-Users-120K.
CONCENTRATION = 33.0
# Class c is drawn with a chance in proportion to 1 / (c + COMMON).
COMMON = 50.0
_TEST_SEED = 2**32 - 1


def read_sizes(file: Path) -> dict[str, int]:
    """Read the number of samples by client, in the order of the file."""
    with file.open(encoding="utf-8") as stream:
        return {line["client"]: int(line["num_images"]) for line in csv.DictReader(stream)}


def labels_of(sizes: Path, num_classes: int, num_clients: int | None = None) -> list[NDArray[np.int64]]:
    """Draw the labels of each client, in the order of the file, again from its first on where more are wanted.

    The test split is not among them.
    """
    numbers = [number for client, number in read_sizes(sizes).items() if client != TEST]
    numbers = list(itertools.islice(itertools.cycle(numbers), num_clients or len(numbers)))
    return [_labels(client, number, num_classes, CONCENTRATION) for client, number in enumerate(numbers)]


def write_federation(sizes: Path, num_classes: int, folder: Path) -> None:
    """Write the parquet files of a federation whose clients are as large as a file says.

    Parameters
    ----------
    sizes : Path
        CSV file with the columns ``client`` and ``num_images``.
    num_classes : int
        Classes of the label column, in the data or not.
    folder : Path
        Where to write; it is made if it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    numbers = read_sizes(sizes)
    test = numbers.pop(TEST, None)
    train = {
        name: (seed, labels)
        for seed, (name, labels) in enumerate(zip(numbers, labels_of(sizes, num_classes), strict=True))
    }
    _write(folder / "train.parquet", num_classes, train)
    if test is not None:
        labels = _labels(_TEST_SEED, test, num_classes, np.inf)
        _write(folder / "test.parquet", num_classes, {TEST: (_TEST_SEED, labels)})


def _write(file: Path, num_classes: int, clients: dict[str, tuple[int, NDArray[np.int64]]]) -> None:
    import datasets

    patterns = np.stack([np.random.default_rng([1, c]).uniform(64, 192, (SIDE, SIDE, 3)) for c in range(num_classes)])
    rows = [
        {"image": {"bytes": _png(patterns[label], seed, place), "path": None}, "label": label, "client": name}
        for name, (seed, labels) in clients.items()
        for place, label in enumerate(labels.tolist())
    ]
    features = datasets.Features(
        image=datasets.Image(),
        label=datasets.ClassLabel(names=[f"class {label}" for label in range(num_classes)]),
        client=datasets.Value("string"),
    )
    datasets.Dataset.from_list(rows, features=features).to_parquet(str(file))


def _png(pattern: NDArray[np.float64], seed: int, place: int) -> bytes:
    draw = np.random.default_rng([2, seed, place])
    pixels = pattern + draw.normal(0.0, NOISE, pattern.shape)
    stream = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(stream, format="PNG")
    return stream.getvalue()


def _labels(seed: int, number: int, num_classes: int, concentration: float) -> NDArray[np.int64]:
    """Draw a client's labels: each of a class drawn by its frequency, or that of an earlier sample (Polya's urn)."""
    draw = np.random.default_rng([0, seed])
    cumulated = np.cumsum(1.0 / (np.arange(num_classes) + COMMON))
    labels: NDArray[np.int64] = np.searchsorted(cumulated, draw.random(number) * cumulated[-1]).astype(np.int64)
    places, new = np.arange(number), np.ones(number, dtype=bool)
    if np.isfinite(concentration):
        new = draw.random(number) * (concentration + places) < concentration
    earlier = (draw.random(number) * places).astype(np.int64)
    for place in np.flatnonzero(~new).tolist():
        labels[place] = labels[earlier[place]]
    return labels


def main(arguments: list[str] | None = None) -> None:
    """Run from the command line: parquet files in the folder that is named."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", type=Path, required=True, help="CSV file: client,num_images")
    parser.add_argument("--classes", type=int, default=1203)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    write_federation(options.sizes, options.classes, options.folder)


if __name__ == "__main__":
    main()
