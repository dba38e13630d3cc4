"""What a sample holds, as bytes and as a digest, without decoding an image."""

import hashlib
from typing import NamedTuple

from PIL import Image

from fedstats_app.data.dataset import UNREADABLE, Dataset

DIGEST_BYTES = 16
# Of images in memory, those that mode, size and bytes describe completely.
_PLAIN_MODES = frozenset({"L", "RGB"})


class Content(NamedTuple):
    """What a sample holds.

    Attributes
    ----------
    kind : {"text", "file", "pixels", "name"}
        "pixels" of an image that comes from no file; "name" of a sample that cannot be opened.
    data : bytes
        The text in UTF-8, the file, the pixels, the name.
    form : str
        Of pixels: mode and size, or "" where these do not say how the pixels look.
    """

    kind: str
    data: bytes
    form: str = ""


def sample_content(dataset: Dataset, index: int) -> Content:
    """Return what a sample holds, or its name where it cannot be opened."""
    try:
        opened = dataset.source.open(index)
        if isinstance(opened, str):
            return Content("text", opened.encode("utf-8", "surrogatepass"))
        with opened as image:
            file = getattr(image, "fp", None)
            if file is None:
                return Content("pixels", image.tobytes(), _form(image))
            file.seek(0)
            return Content("file", bytes(file.read()))
    except UNREADABLE:
        return Content("name", dataset.sample_name(index).encode("utf-8", "surrogateescape"))


def sample_digest(dataset: Dataset, index: int) -> bytes | None:
    """Return a digest that two samples share only if they are read as the same image or text.

    Returns
    -------
    bytes or None
        ``DIGEST_BYTES`` bytes; None where what the sample holds does not say how it is read.
    """
    content = sample_content(dataset, index)
    if content.kind == "name" or (content.kind == "pixels" and not content.form):
        return None
    digest = hashlib.blake2b(f"{content.kind} {content.form}\0".encode(), digest_size=DIGEST_BYTES)
    digest.update(content.data)
    return digest.digest()


def _form(image: Image.Image) -> str:
    return f"{image.mode} {image.size}" if image.mode in _PLAIN_MODES and not image.info else ""
