"""Endace's record format ERF, as adapters and switches of native InfiniBand are captured.

Records follow each other without a file header: timestamp (64 bits, little-endian, 2^-32 s), type,
flags, record length, loss counter and length on the wire (16 bits each, big-endian).
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from rocemu.capture.model import (
    CapturedPacket,
    CaptureError,
    CaptureReader,
    DamagedError,
    ErfType,
    Interface,
    LinkType,
)

__all__ = ["ErfReader"]

_HEADER = struct.Struct("<QBB2s2s2s")
_KNOWN_TYPES = frozenset(ErfType)


class ErfReader(CaptureReader):
    """Packets begin with their ERF header (link type ERF).

    The format has no magic: CaptureError unless the first record is of a type in
    :class:`ErfType` and has a possible length.
    """

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        super().__init__(file, head)
        self._first = head + file.read(_HEADER.size - len(head))
        if not self._plausible():
            raise CaptureError(
                f"not a pcap, pcapng or ERF file: it begins with {head.hex(' ')}"
                if head
                else "the file is empty"
            )
        self.interface = Interface(linktype=LinkType.ERF)

    def _plausible(self) -> bool:
        if len(self._first) < _HEADER.size:
            return False
        _, kind, flags, size, _, wire = _HEADER.unpack(self._first)
        return (
            kind & 0x7F in _KNOWN_TYPES
            and not flags & 0xC0  # reserved bits
            and int.from_bytes(size, "big") > _HEADER.size
            and int.from_bytes(wire, "big") > 0
        )

    def _read_packets(self) -> Iterator[CapturedPacket]:
        header: bytes | None = self._first
        while header:
            time, kind, _, size_bytes, _, wire = _HEADER.unpack(header)
            size = int.from_bytes(size_bytes, "big")
            if size < _HEADER.size:
                raise DamagedError(f"a record of {size} bytes, its header alone is {_HEADER.size}")
            data = header + self._read(size - _HEADER.size, "a record")
            on_wire = int.from_bytes(wire, "big")
            around = _around(data, kind)
            # a record is filled up to 8 bytes: what is behind the packet is not of it
            data = data[: around + on_wire] if len(data) > around + on_wire else data
            yield CapturedPacket(time * 1_000_000_000 >> 32, data, around + on_wire, self.interface)
            header = self._read_or_end(_HEADER.size, "a record header")


def _around(data: bytes, kind: int) -> int:
    """Bytes of a record that are not of its packet: header, extensions, Ethernet's two."""
    size, more = _HEADER.size, kind & 0x80
    while more:
        more = size < len(data) and data[size] & 0x80
        size += 8
    return size + 2 if kind & 0x7F == ErfType.ETHERNET else size
