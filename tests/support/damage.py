"""Files with one bit of another value than was written."""

from collections.abc import Iterator


def flipped(content: bytes, *, step: int = 1) -> Iterator[bytes]:
    """Yield the content with each bit flipped in turn, or with every so-many-th."""
    for bit in range(0, 8 * len(content), step):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)
