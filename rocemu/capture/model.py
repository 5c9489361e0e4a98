"""What a capture file holds, whatever its format."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from types import TracebackType
from typing import BinaryIO, Self

__all__ = [
    "MAX_BLOCK",
    "SNAPLEN",
    "CaptureError",
    "CaptureReader",
    "CapturedPacket",
    "DamagedError",
    "Direction",
    "ErfType",
    "Interface",
    "LinkType",
]

#: Most bytes that a packet in a capture may have: libpcap's own bound (MAXIMUM_SNAPLEN).
SNAPLEN = 262_144
#: Most bytes that a pcapng block may have: Wireshark's own bound.
MAX_BLOCK = 16 * 1024 * 1024


class LinkType(IntEnum):
    """Link types that :mod:`rocemu.capture.frames` looks into ([tcpdump.org] LINKTYPE_*)."""

    NULL = 0
    ETHERNET = 1
    DLT_RAW = 12
    """What some systems write for RAW."""
    RAW = 101
    LOOP = 108
    LINUX_SLL = 113
    ERF = 197
    """Endace's record format, whose header says what follows."""
    IPV4 = 228
    IPV6 = 229
    INFINIBAND = 247
    """Native InfiniBand from the local route header on."""
    LINUX_SLL2 = 276


class ErfType(IntEnum):
    """What an ERF record holds; of all its types those that matter here."""

    ETHERNET = 2
    INFINIBAND = 21
    INFINIBAND_LINK = 25


class Direction(IntEnum):
    """As the interface sees it; the values are those of pcapng's packet flags."""

    UNKNOWN = 0
    IN = 1
    OUT = 2


@dataclass(frozen=True, slots=True)
class Interface:
    """Where packets were captured; a pcap file has one, a pcapng section any number."""

    linktype: int = LinkType.ETHERNET
    name: str = ""
    description: str = ""
    snaplen: int = SNAPLEN
    """Bytes kept of each packet; 0 is no limit."""
    os: str = ""


@dataclass(slots=True)
class CapturedPacket:
    """One packet, from the link header on."""

    timestamp_ns: int
    """Nanoseconds since 1970; 0 where the file has no time (pcapng's Simple Packet Block)."""
    data: bytes
    original_length: int
    """Length on the link; more than ``len(data)`` when the capture cut the packet."""
    interface: Interface
    comments: tuple[str, ...] = ()
    direction: Direction = Direction.UNKNOWN

    @property
    def linktype(self) -> int:
        return self.interface.linktype

    @property
    def cut(self) -> bool:
        """Whether the snap length took something off."""
        return self.original_length > len(self.data)


class CaptureError(ValueError):
    """Not a capture, or one of a kind that is not read; ``str()`` is a sentence."""


class DamagedError(Exception):
    """A reader's own: the file stops making sense here.  It ends the iteration, see ``damage``."""


class CaptureReader(ABC):
    """Packets of one capture file, one at a time: memory does not grow with the file.

    A file that ends in the middle of a record, or stops making sense, gives the packets before
    that place and then ends; ``damage`` says in words what is wrong, None is a clean end.
    """

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        """``file`` must be buffered and stands behind ``head``, its first 4 bytes."""
        self._file = file
        self._head = head
        self.packets = 0
        """Packets given so far."""
        self.cut = 0
        """Of these, those that a snap length took something off."""
        self.damage: str | None = None

    def __iter__(self) -> Iterator[CapturedPacket]:
        try:
            for packet in self._read_packets():
                self.packets += 1
                self.cut += packet.cut
                yield packet
        except DamagedError as error:
            self.damage = f"after packet {self.packets}: {error}"

    @abstractmethod
    def _read_packets(self) -> Iterator[CapturedPacket]:
        """The packets; raises DamagedError where they cannot go on."""

    def _read(self, size: int, what: str) -> bytes:
        """Exactly ``size`` bytes; raises DamagedError where the file ends before."""
        data = self._file.read(size)
        if len(data) < size:
            raise DamagedError(f"the file ends in {what}, with {len(data)} of {size} bytes")
        return data

    def _read_or_end(self, size: int, what: str) -> bytes | None:
        """As :meth:`_read`, but None at the end of the file."""
        data = self._file.read(size)
        if data and len(data) < size:
            raise DamagedError(f"the file ends in {what}, with {len(data)} of {size} bytes")
        return data or None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
