"""Keys that two parties agree on, and the masks that follow from them: X25519, HKDF-SHA256, AES-256 in counter mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY_BYTES = 32
# Of a message sealed by ChaCha20-Poly1305.
TAG_BYTES = 16
# Of a mask made at a time: they stay in the processor's cache.
_BLOCK = 2**17
_ZEROS, _FIRST_COUNTER = bytes(_BLOCK), bytes(16)
# Every key seals one message only.
_ONLY_NONCE = bytes(12)

Words = list[NDArray[np.uint64]]


class Unsealable(ValueError):
    """A sealed message was not sealed by its sender, or was changed on its way."""


def derived(secret: bytes, salt: bytes, purpose: str) -> bytes:
    """Derive a key of 32 bytes for one purpose."""
    return HKDF(SHA256(), KEY_BYTES, salt, f"fedstats/1|{purpose}".encode()).derive(secret)


def public_key(private: bytes) -> bytes:
    """Return the public key of an X25519 private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def secrets_with(private: bytes, publics: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the secret that the holder of an X25519 private key shares with the holder of each public one.

    Raises
    ------
    ValueError
        If a key has no secret with any key.
    """
    own = X25519PrivateKey.from_private_bytes(private)
    return (own.exchange(X25519PublicKey.from_public_bytes(public)) for public in publics)


def stream(key: bytes, number: int) -> bytes:
    """Return this number of pseudo-random bytes, which the key determines."""
    return Cipher(algorithms.AES256(key), modes.CTR(_FIRST_COUNTER)).encryptor().update(bytes(number))


def add_mask(words: Words, key: bytes, sign: int) -> None:
    """Add a key's mask to arrays of 64-bit words, in place, or take it away: modulo 2^64, and so modulo any 2^k.

    Parameters
    ----------
    words : sequence of ndarray
        One-dimensional; each continues the key's stream where the previous array ended.
    key : bytes
        32 bytes; one key makes one mask.
    sign : int
        1 to add it, -1 to take it away.
    """
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(_FIRST_COUNTER)).encryptor()
    buffer = bytearray(_BLOCK + 15)
    operation = np.add if sign > 0 else np.subtract
    for array in words:
        per_block = _BLOCK // array.itemsize
        for start in range(0, len(array), per_block):
            part = array[start : start + per_block]
            size = part.nbytes
            encryptor.update_into(_ZEROS if size == _BLOCK else bytes(size), buffer)
            mask = np.frombuffer(buffer, array.dtype.newbyteorder("<"), len(part))
            operation(part, mask, out=part, casting="unsafe")


def seal(message: bytes, key: bytes) -> bytes:
    """Encrypt and authenticate the only message of a key, which adds 16 bytes."""
    return ChaCha20Poly1305(key).encrypt(_ONLY_NONCE, message, None)


def unseal(sealed: bytes, key: bytes) -> bytes:
    """Return the message that :func:`seal` was given.

    Raises
    ------
    Unsealable
        If it was sealed with another key, or changed.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(_ONLY_NONCE, sealed, None)
    except InvalidTag:
        raise Unsealable("a sealed share does not come from its sender as it left") from None
