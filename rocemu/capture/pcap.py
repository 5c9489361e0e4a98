"""The classic pcap format, read ([draft-ietf-opsawg-pcap])."""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from rocemu.capture.model import (
    SNAPLEN,
    CapturedPacket,
    CaptureError,
    CaptureReader,
    DamagedError,
    Interface,
)

__all__ = ["PcapReader"]

# first four bytes -> (byte order, nanoseconds in one unit of the record's fraction)
_MAGICS = {
    struct.pack(order + "I", magic): (order, unit)
    for order in "<>"
    for magic, unit in ((0xA1B2C3D4, 1000), (0xA1B23C4D, 1))
}


class PcapReader(CaptureReader):
    """Microsecond and nanosecond files of both byte orders; raises CaptureError for others."""

    MAGICS = frozenset(_MAGICS)

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        super().__init__(file, head)
        if head not in _MAGICS:
            raise CaptureError(f"not a pcap file: it begins with {head.hex(' ') or 'nothing'}")
        self._order, self._unit = _MAGICS[head]
        try:
            header = self._read(20, "the file header")
        except DamagedError as error:
            raise CaptureError(f"not a whole pcap file: {error}") from None
        major, minor, _, _, snaplen, link = struct.unpack(self._order + "HHiIII", header)
        if major != 2:
            raise CaptureError(f"pcap version {major}.{minor}, only 2.x is read")
        # the upper half of the link type says whether frames end with their check sequence
        self.interface = Interface(linktype=link & 0xFFFF, snaplen=snaplen)

    def _read_packets(self) -> Iterator[CapturedPacket]:
        record = struct.Struct(self._order + "IIII")
        while header := self._read_or_end(record.size, "a record header"):
            seconds, fraction, size, original = record.unpack(header)
            if size > SNAPLEN:
                raise DamagedError(
                    f"a record of {size} bytes, more than the {SNAPLEN} there can be"
                )
            data = self._read(size, "a packet")
            time = seconds * 1_000_000_000 + fraction * self._unit
            yield CapturedPacket(time, data, original, self.interface)
