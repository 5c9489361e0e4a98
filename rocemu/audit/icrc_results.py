"""What may go wrong with a CRC once its bytes are right: how it is begun, computed and written."""

from collections.abc import Callable
from typing import NamedTuple

from isal.isal_zlib import crc32

__all__ = ["RESULTS", "Result"]


class Result(NamedTuple):
    """What is made of the bytes: a CRC, in an order of bytes."""

    name: str
    """Empty for what is right."""
    meaning: str
    make: Callable[[bytes], bytes]


def _little(data: bytes) -> bytes:
    return crc32(data).to_bytes(4, "little")


def _uncomplemented(data: bytes) -> bytes:
    return (crc32(data) ^ 0xFFFFFFFF).to_bytes(4, "little")


def _from_zero(data: bytes) -> bytes:
    return crc32(data, 0xFFFFFFFF).to_bytes(4, "little")


def _table(polynomial: int) -> tuple[int, ...]:
    """Of a reflected CRC-32."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CASTAGNOLI = _table(0x82F63B78)
_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


def _crc32c(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CASTAGNOLI[(crc ^ byte) & 0xFF]
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little")


def _straight(data: bytes) -> bytes:
    """Most significant bit first: the reflected CRC of reflected bytes, reflected."""
    reflected = crc32(data.translate(_REVERSED)).to_bytes(4, "little")
    return reflected.translate(_REVERSED)[::-1]


def _swapped_order(make: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: make(data)[::-1]


#: What may go wrong with the CRC; the first row is what is right.
RESULTS: tuple[Result, ...] = (
    Result("", "", _little),
    Result("byte-order", "written most significant byte first", _swapped_order(_little)),
    Result("not-complemented", "without the final complement", _uncomplemented),
    Result(
        "not-complemented-byte-order",
        "without the final complement, most significant byte first",
        _swapped_order(_uncomplemented),
    ),
    Result("begun-at-zero", "begun at 0, not at ones", _from_zero),
    Result(
        "begun-at-zero-byte-order",
        "begun at 0, not at ones, most significant byte first",
        _swapped_order(_from_zero),
    ),
    Result("crc32c", "CRC-32C (Castagnoli), another polynomial", _crc32c),
    Result("crc32c-byte-order", "CRC-32C, most significant byte first", _swapped_order(_crc32c)),
    Result("not-reflected", "bits of each byte in the other order", _straight),
    Result(
        "not-reflected-byte-order",
        "bits of each byte in the other order, most significant byte first",
        _swapped_order(_straight),
    ),
)
