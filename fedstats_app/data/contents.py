"""Content of samples, as bytes and as a digest, without decoding an image; and the hold-out that it decides."""

from __future__ import annotations

import hashlib
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


def draw_holdout(identities: Sequence[bytes], floor: int, fraction: float) -> list[bytes]:
    """Choose by their content the samples of one class that are held out for evaluation.

    Parameters
    ----------
    identities : sequence of bytes
        All different, at least ``floor``.
    floor : int
        The fewest samples that may be told of.
    fraction : float
        Share to hold out, in [0, 1). Where it is a sample or more, it is at least the floor, and leaves at least the
        floor; where both is impossible nothing is held out.
    """
    number = round(fraction * len(identities))
    if number:
        number = min(max(number, floor), len(identities) - floor)
    return sorted(identities)[:number] if number >= max(floor, 1) else []
