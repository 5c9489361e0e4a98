"""pcapng: several interfaces, nanoseconds, comments, directions ([draft-ietf-opsawg-pcapng])."""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from rocemu.capture.blocks import (
    BYTE_ORDER_MAGIC,
    BYTE_ORDERS,
    EPB_FLAGS,
    IF_DESCRIPTION,
    IF_NAME,
    IF_OS,
    IF_TSOFFSET,
    IF_TSRESOL,
    OPT_COMMENT,
    SHB_USERAPPL,
    Block,
    pack_block,
    pack_options,
    padded,
    text_option,
    unpack_options,
)
from rocemu.capture.model import (
    MAX_BLOCK,
    CapturedPacket,
    CaptureError,
    CaptureReader,
    DamagedError,
    Direction,
    Interface,
)

__all__ = ["MAX_INTERFACES", "PcapngReader", "PcapngWriter"]

#: Interfaces that a section may declare: a bound on memory, far above what anyone has.
MAX_INTERFACES = 65_536
_NANOSECONDS = 9  # if_tsresol: units of 10^-9 s
_SECOND = 1_000_000_000


class PcapngWriter:
    """Writes one section, little-endian, times in nanoseconds.

    An interface is declared when the first packet from it is written; those given at the start
    are declared at once, so that a live reader knows them before any packet.  All methods raise
    what the file raises (OSError).
    """

    def __init__(
        self,
        file: BinaryIO,
        interfaces: Iterable[Interface] = (),
        *,
        comment: str = "",
        application: str = "",
    ) -> None:
        self._file = file
        self._interfaces: dict[Interface, int] = {}
        texts = ((OPT_COMMENT, comment), (SHB_USERAPPL, application))
        header = struct.pack("<IHHq", BYTE_ORDER_MAGIC, 1, 0, -1)  # -1: length not known
        options = pack_options(text_option(code, text) for code, text in texts if text)
        file.write(pack_block(Block.SECTION_HEADER, header + options))
        for interface in interfaces:
            self._declare(interface)

    def _declare(self, interface: Interface) -> int:
        number = self._interfaces.get(interface)
        if number is not None:
            return number
        texts = (
            (IF_NAME, interface.name),
            (IF_DESCRIPTION, interface.description),
            (IF_OS, interface.os),
        )
        options = [text_option(code, text) for code, text in texts if text]
        options.append((IF_TSRESOL, bytes((_NANOSECONDS,))))
        header = struct.pack("<HHI", interface.linktype, 0, interface.snaplen)
        self._file.write(pack_block(Block.INTERFACE, header + pack_options(options)))
        number = self._interfaces[interface] = len(self._interfaces)
        return number

    def write(self, packet: CapturedPacket) -> None:
        """One packet, cut to its interface's snap length; ``timestamp_ns`` is 0 or more."""
        number = self._declare(packet.interface)
        data = packet.data[: packet.interface.snaplen or None]
        time = packet.timestamp_ns
        options = [text_option(OPT_COMMENT, comment) for comment in packet.comments]
        if packet.direction:
            options.append((EPB_FLAGS, packet.direction.to_bytes(4, "little")))
        body = (
            struct.pack(
                "<IIIII", number, time >> 32, time & 0xFFFFFFFF, len(data), packet.original_length
            )
            + data.ljust(padded(len(data)), b"\0")
            + pack_options(options)
        )
        self._file.write(pack_block(Block.ENHANCED_PACKET, body))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Source:
    """An interface as its section declares it, with the meaning of its timestamps."""

    def __init__(self, interface: Interface, resolution: int, offset: int) -> None:
        self.interface = interface
        base, exponent = (2, resolution & 0x7F) if resolution & 0x80 else (10, resolution)
        self._units: int = base**exponent
        self._offset = offset * _SECOND

    def time(self, units: int) -> int:
        """Timestamp of a packet -> nanoseconds since 1970; 0 for one before that, or that
        nanoseconds in 64 bits cannot say (the year 2554)."""
        time = units * _SECOND // self._units + self._offset
        return time if 0 <= time < 1 << 64 else 0


class PcapngReader(CaptureReader):
    """Packets of all sections and interfaces; blocks that hold no packet are skipped."""

    MAGIC = struct.pack("<I", Block.SECTION_HEADER)  # a palindrome: the same in both orders

    def __init__(self, file: BinaryIO, head: bytes) -> None:
        super().__init__(file, head)
        self.skipped = 0
        """Blocks of types that are not understood, so far."""
        self.bad_options = 0
        """Blocks with options that did not fit or had a wrong size; these were ignored."""
        self._order = "<"
        self._sources: list[_Source] = []
        if head != self.MAGIC:
            raise CaptureError(f"not a pcapng file: it begins with {head.hex(' ') or 'nothing'}")
        try:
            self._start_section()
        except DamagedError as error:
            raise CaptureError(f"not a whole pcapng file: {error}") from None

    @property
    def interfaces(self) -> list[Interface]:
        """Those declared so far in the section that is being read."""
        return [source.interface for source in self._sources]

    def _start_section(self) -> None:
        """Read a section header behind its block type; raises DamagedError."""
        start = self._read(8, "a section header")
        order = BYTE_ORDERS.get(start[4:])
        if order is None:
            raise DamagedError(f"a section header with byte-order magic {start[4:].hex()}")
        self._order = order
        self._sources = []
        length = self._checked_length(start[:4], 28)
        major, minor = struct.unpack_from(order + "HH", self._read_rest(length, 12))
        if major != 1:
            raise DamagedError(f"pcapng version {major}.{minor}, only 1.x is read")

    def _checked_length(self, field: bytes, least: int) -> int:
        length: int = struct.unpack(self._order + "I", field)[0]
        if not least <= length <= MAX_BLOCK or length % 4:
            raise DamagedError(f"a block length of {length}")
        return length

    def _read_rest(self, length: int, done: int) -> bytes:
        """A block's bytes from ``done`` to its trailing length, which must repeat the first."""
        rest = self._read(length - done, "a block")
        (again,) = struct.unpack(self._order + "I", rest[-4:])
        if again != length:
            raise DamagedError(f"a block of {length} bytes that says {again} at its end")
        return rest[:-4]

    def _read_packets(self) -> Iterator[CapturedPacket]:
        readers: dict[int, Callable[[bytes], CapturedPacket]] = {
            Block.ENHANCED_PACKET: self._enhanced_packet,
            Block.SIMPLE_PACKET: self._simple_packet,
            Block.PACKET: self._old_packet,
        }
        while kind := self._read_or_end(4, "a block header"):
            if kind == self.MAGIC:
                self._start_section()
                continue
            (number,) = struct.unpack(self._order + "I", kind)
            length = self._checked_length(self._read(4, "a block header"), 12)
            body = self._read_rest(length, 8)
            if number in readers:
                yield readers[number](body)
            elif number == Block.INTERFACE:
                self._add_interface(body)
            else:
                self.skipped += 1

    def _options(self, data: bytes) -> list[tuple[int, bytes]]:
        options, whole = unpack_options(data, self._order)
        if not whole:
            self.bad_options += 1
        return options

    def _add_interface(self, body: bytes) -> None:
        if len(self._sources) >= MAX_INTERFACES:
            raise DamagedError(f"more than {MAX_INTERFACES} interfaces")
        linktype, _, snaplen = self._unpack("HHI", body, "an interface")
        texts = {IF_NAME: "", IF_DESCRIPTION: "", IF_OS: ""}
        resolution, offset = 6, 0
        for code, value in self._options(body[8:]):
            if code in texts:
                texts[code] = _text(value)
            elif code == IF_TSRESOL and len(value) == 1:
                resolution = value[0]
            elif code == IF_TSOFFSET and len(value) == 8:
                (offset,) = struct.unpack(self._order + "q", value)
            elif code in (IF_TSRESOL, IF_TSOFFSET):
                self.bad_options += 1
        interface = Interface(
            linktype, texts[IF_NAME], texts[IF_DESCRIPTION], snaplen, texts[IF_OS]
        )
        self._sources.append(_Source(interface, resolution, offset))

    def _enhanced_packet(self, body: bytes) -> CapturedPacket:
        number, *rest = self._unpack("IIIII", body, "a packet")
        return self._timed_packet(body, number, *rest)

    def _old_packet(self, body: bytes) -> CapturedPacket:
        number, _drops, *rest = self._unpack("HHIIII", body, "a packet")
        return self._timed_packet(body, number, *rest)

    def _timed_packet(
        self, body: bytes, number: int, high: int, low: int, size: int, original: int
    ) -> CapturedPacket:
        """Both blocks have 20 bytes of fields, then data, then options."""
        source = self._source(number)
        if size > len(body) - 20:
            raise DamagedError(
                f"a packet of {size} bytes in a block with room for {len(body) - 20}"
            )
        comments: list[str] = []
        direction = Direction.UNKNOWN
        for code, value in self._options(body[20 + padded(size) :]):
            if code == OPT_COMMENT:
                comments.append(_text(value))
            elif code == EPB_FLAGS and len(value) == 4:
                (flags,) = struct.unpack(self._order + "I", value)
                if flags & 3 != 3:
                    direction = Direction(flags & 3)
            elif code == EPB_FLAGS:
                self.bad_options += 1
        return CapturedPacket(
            source.time(high << 32 | low),
            body[20 : 20 + size],
            original,
            source.interface,
            tuple(comments),
            direction,
        )

    def _simple_packet(self, body: bytes) -> CapturedPacket:
        (original,) = self._unpack("I", body, "a packet")
        interface = self._source(0).interface
        size = min(original, interface.snaplen or original)
        if size > len(body) - 4:
            raise DamagedError(f"a packet of {size} bytes in a block with room for {len(body) - 4}")
        return CapturedPacket(0, body[4 : 4 + size], original, interface)

    def _source(self, number: int) -> _Source:
        if number >= len(self._sources):
            raise DamagedError(
                f"a packet from interface {number}, and {len(self._sources)} are declared"
            )
        return self._sources[number]

    def _unpack(self, fields: str, body: bytes, what: str) -> tuple[int, ...]:
        layout = struct.Struct(self._order + fields)
        if len(body) < layout.size:
            raise DamagedError(f"{what} of {len(body)} bytes, its fields alone are {layout.size}")
        return layout.unpack_from(body)


def _text(value: bytes) -> str:
    """Text of an option; some writers end it with a zero byte."""
    return value.rstrip(b"\0").decode("utf-8", "replace")
