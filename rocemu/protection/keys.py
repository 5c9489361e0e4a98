"""Where lkeys and rkeys come from.

A key is 32 bits: bits 31:8 are the index into the protection table, bits 7:0 the variant,
as adapters' drivers lay them out.  The *whole* key has to match.
"""

import hashlib
import secrets
from collections.abc import Callable
from typing import Protocol

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

__all__ = ["KeyGenerator", "OsKeys", "SeededKeys", "key_index", "key_variant"]


def key_index(key: int) -> int:
    """Bits 31:8: the place in the protection table."""
    return key >> 8


def key_variant(key: int) -> int:
    """Bits 7:0: what tells the keys of one index apart."""
    return key & 0xFF


class KeyGenerator(Protocol):
    """Makes the keys of a device."""

    def next_key(self, in_use: Callable[[int], bool]) -> int:
        """A 32-bit key whose index is not 0 and for whose index ``in_use(index)`` is false."""


def _first_free(word: Callable[[], int], in_use: Callable[[int], bool]) -> int:
    while True:
        key = word()
        index = key_index(key)
        if index and not in_use(index):
            return key


class OsKeys:
    """Keys that can't be foretold: all 32 bits from the operating system's CSPRNG."""

    def next_key(self, in_use: Callable[[int], bool]) -> int:
        """The next key, see :class:`KeyGenerator`."""
        return _first_free(lambda: secrets.randbits(32), in_use)


class SeededKeys:
    """The same keys for the same ``seed`` (any bytes): for captures and tests that repeat.

    Words of the ChaCha20 keystream (RFC 8439) under SHA-256 of the seed.  Whoever knows the seed
    knows the keys.
    """

    def __init__(self, seed: bytes) -> None:
        key = hashlib.sha256(seed).digest()
        self._keystream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def next_key(self, in_use: Callable[[int], bool]) -> int:
        """The next key, see :class:`KeyGenerator`."""
        return _first_free(self._word, in_use)

    def _word(self) -> int:
        return int.from_bytes(self._keystream.update(bytes(4)), "big")
