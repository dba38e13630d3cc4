"""Content of samples, as bytes and as a digest, without decoding an image; and cells of samples answered together.

Sums over many sets of samples can be added and subtracted. If each set is a union of cells, and a cell has as many
samples as the floor, so has every difference. Which cell a sample is in depends on what it holds, not on a seed: the
same data give the same cells for every run.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence

from fedstats_app.base.ledger import ID_BYTES
from fedstats_app.data.dataset import UNREADABLE, Dataset

DIGEST_BYTES = 16
# Of images in memory, those that mode, size and bytes describe completely.
_PLAIN_MODES = frozenset({"L", "RGB"})


def sample_content(dataset: Dataset, index: int) -> tuple[str, bytes, str]:
    """Return a kind, what a sample holds, and a form.

    The kind is "text" (in UTF-8), "file", "pixels" of an image that comes from no file, or "name" of a sample that
    cannot be opened. Pixels have a form, mode and size; "" if these do not say how the pixels look.
    """
    try:
        opened = dataset.source.open(index)
        if isinstance(opened, str):
            return "text", opened.encode("utf-8", "surrogatepass"), ""
        with opened as image:
            file = getattr(image, "fp", None)
            if file is None:
                plain = image.mode in _PLAIN_MODES and not image.info
                return "pixels", image.tobytes(), f"{image.mode} {image.size}" if plain else ""
            file.seek(0)
            return "file", bytes(file.read()), ""
    except UNREADABLE:
        return "name", dataset.sample_name(index).encode("utf-8", "surrogateescape"), ""


def sample_digest(dataset: Dataset, index: int) -> bytes | None:
    """Return ``DIGEST_BYTES`` bytes that two samples share only if they are read as the same image or text.

    None if what the sample holds does not say how it is read.
    """
    kind, data, form = sample_content(dataset, index)
    if kind == "name" or (kind == "pixels" and not form):
        return None
    return hashlib.blake2b(f"{kind} {form}\0".encode() + data, digest_size=DIGEST_BYTES).digest()


def sample_identities(dataset: Dataset) -> list[bytes]:
    """Identify each sample by a digest of its file or text, and of equal ones by their number.

    No image is decoded. A sample that cannot be opened goes by its name.
    """
    seen: Counter[tuple[int, bytes]] = Counter()
    found = []
    for index, label in enumerate(dataset.labels.tolist()):
        kind, data, _ = sample_content(dataset, index)
        digest = hashlib.blake2b(kind.encode() + b"\0" + data, digest_size=ID_BYTES).digest()
        copy = seen[label, digest]
        seen[label, digest] += 1
        if copy:
            digest = hashlib.blake2b(digest + copy.to_bytes(8, "little"), digest_size=ID_BYTES).digest()
        found.append(digest)
    return found


def draw_cells(identities: Sequence[bytes], floor: int, fraction: float) -> list[tuple[bool, list[bytes]]]:
    """Divide samples of one class into cells, those that are held out for evaluation first.

    Parameters
    ----------
    identities : sequence of bytes
        All different.
    floor : int
        The fewest samples of a cell; at least 1 in any case.
    fraction : float
        Share to hold out, in [0, 1). Where it is a sample or more, it is at least the floor, and leaves at least the
        floor; where both is impossible nothing is held out.

    Returns
    -------
    list of (bool, list of bytes)
        Whether a cell is held out, and who is in it; none where there are fewer samples than the floor.
    """
    floor, number = max(floor, 1), len(identities)
    if number < floor:
        return []
    held_out = round(fraction * number)
    if held_out:
        held_out = min(max(held_out, floor), number - floor)
    if held_out < floor:
        held_out = 0
    drawn = sorted(identities)
    parts = ((True, drawn[:held_out]), (False, drawn[held_out:]))
    return [(held, cell) for held, part in parts for cell in _split(part, len(part) // floor)]


def _split(samples: list[bytes], number: int) -> list[list[bytes]]:
    """Split samples into so many runs whose sizes differ by at most one."""
    bounds = [len(samples) * i // number for i in range(number + 1)] if number else []
    return [samples[low:high] for low, high in itertools.pairwise(bounds)]
