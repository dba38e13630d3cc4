"""examples.json: small pictures of the server's test images that a head got wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fedstats_app.storage.files import write_atomically
from fedstats_app.storage.json_digest import read_json_file, to_json_with_digest

EXAMPLES_FILE = "examples.json"


@dataclass(frozen=True)
class Example:
    """Test images of one class that a head takes for another.

    Attributes
    ----------
    true, predicted : int
        Class ids.
    pictures : tuple of str
        Base64 of JPEG files, some of the images.
    """

    true: int
    predicted: int
    pictures: tuple[str, ...]


def write_examples(folder: Path, method: str, examples: Sequence[Example]) -> None:
    """Write a run folder's examples.json: whose predictions they are, and the pictures by pair of classes."""
    content = {"method": method, "pairs": [asdict(example) for example in examples]}
    write_atomically(folder / EXAMPLES_FILE, (to_json_with_digest(content) + "\n").encode())


def read_examples(folder: Path) -> list[Example]:
    """Read them; a run folder without the file has none.

    Raises
    ------
    ValueError
        If the file is damaged.
    """
    path = folder / EXAMPLES_FILE
    pairs = read_json_file(path)["pairs"] if path.is_file() else []
    return [Example(int(one["true"]), int(one["predicted"]), tuple(one["pictures"])) for one in pairs]
