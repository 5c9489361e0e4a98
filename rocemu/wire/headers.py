"""The BTH and the headers that may follow it ([IBTA] chapter 9, Annexes A14 and A19).

Every header is a small value with ``pack() -> bytes`` and ``unpack(data, offset)``; ``data`` must
hold :data:`SIZE <BTH.SIZE>` bytes from ``offset`` on (``struct.error`` otherwise, which
:func:`rocemu.wire.parse` never lets through).  All fields are big-endian on the wire.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

__all__ = [
    "AETH",
    "BTH",
    "DETH",
    "FETH",
    "IETH",
    "RDETH",
    "RETH",
    "XRCETH",
    "AtomicAckETH",
    "AtomicETH",
    "CNPPad",
    "ExtensionHeader",
    "ImmDt",
]

_BTH = struct.Struct(">BBHII")
_RETH = struct.Struct(">QII")
_ATOMIC = struct.Struct(">QIQQ")
_DETH = struct.Struct(">II")
_WORD = struct.Struct(">I")
_QUAD = struct.Struct(">Q")


@dataclass(slots=True)
class BTH:
    """Base Transport Header, 12 bytes ([IBTA] 9.2)."""

    SIZE: ClassVar[int] = 12

    opcode: int
    dest_qp: int
    psn: int
    ackreq: bool = False
    """A: the responder must acknowledge this packet."""
    se: bool = False
    """Solicited event, meaningful on the last packet of a message."""
    migreq: bool = False
    pad: int = 0
    """PadCnt: zero bytes after the payload, 0-3."""
    tver: int = 0
    pkey: int = 0xFFFF
    fecn: bool = False
    becn: bool = False
    resv6: int = 0
    resv7: int = 0

    def pack(self) -> bytes:
        return _BTH.pack(
            self.opcode,
            self.se << 7 | self.migreq << 6 | self.pad << 4 | self.tver,
            self.pkey,
            self.fecn << 31 | self.becn << 30 | self.resv6 << 24 | self.dest_qp,
            self.ackreq << 31 | self.resv7 << 24 | self.psn,
        )

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        opcode, flags, pkey, qp_word, psn_word = _BTH.unpack_from(data, offset)
        return cls(
            opcode,
            qp_word & 0xFFFFFF,
            psn_word & 0xFFFFFF,
            psn_word >= 1 << 31,
            flags >= 0x80,
            bool(flags & 0x40),
            flags >> 4 & 3,
            flags & 15,
            pkey,
            qp_word >= 1 << 31,
            bool(qp_word & 1 << 30),
            qp_word >> 24 & 0x3F,
            psn_word >> 24 & 0x7F,
        )


@dataclass(slots=True)
class RETH:
    """RDMA Extended Transport Header ([IBTA] 9.3.3)."""

    SIZE: ClassVar[int] = 16

    va: int
    rkey: int
    length: int
    """DMA length: bytes of the whole message, at most 2^31."""

    def pack(self) -> bytes:
        return _RETH.pack(self.va, self.rkey, self.length)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        return cls(*_RETH.unpack_from(data, offset))


@dataclass(slots=True)
class AETH:
    """ACK Extended Transport Header ([IBTA] 9.3.5); the syndrome: :mod:`rocemu.wire.aeth`."""

    SIZE: ClassVar[int] = 4

    syndrome: int
    msn: int

    def pack(self) -> bytes:
        return _WORD.pack(self.syndrome << 24 | self.msn)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        (word,) = _WORD.unpack_from(data, offset)
        return cls(word >> 24, word & 0xFFFFFF)


@dataclass(slots=True)
class DETH:
    """Datagram Extended Transport Header ([IBTA] 9.3.2)."""

    SIZE: ClassVar[int] = 8

    qkey: int
    source_qp: int

    def pack(self) -> bytes:
        return _DETH.pack(self.qkey, self.source_qp)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        qkey, word = _DETH.unpack_from(data, offset)
        return cls(qkey, word & 0xFFFFFF)


@dataclass(slots=True)
class ImmDt:
    """Immediate data, handed to the receiver as it is ([IBTA] 9.3.6)."""

    SIZE: ClassVar[int] = 4

    immediate: int

    def pack(self) -> bytes:
        return _WORD.pack(self.immediate)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        return cls(*_WORD.unpack_from(data, offset))


@dataclass(slots=True)
class IETH:
    """The R_Key that a SEND with Invalidate takes away ([IBTA] 9.3.7)."""

    SIZE: ClassVar[int] = 4

    rkey: int

    def pack(self) -> bytes:
        return _WORD.pack(self.rkey)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        return cls(*_WORD.unpack_from(data, offset))


@dataclass(slots=True)
class AtomicETH:
    """Atomic Extended Transport Header ([IBTA] 9.3.4); FetchAdd's addend is in ``swap_or_add``."""

    SIZE: ClassVar[int] = 28

    va: int
    rkey: int
    swap_or_add: int
    compare: int = 0

    def pack(self) -> bytes:
        return _ATOMIC.pack(self.va, self.rkey, self.swap_or_add, self.compare)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        return cls(*_ATOMIC.unpack_from(data, offset))


@dataclass(slots=True)
class AtomicAckETH:
    """The value that memory held before an atomic ([IBTA] 9.3.5.3)."""

    SIZE: ClassVar[int] = 8

    original: int

    def pack(self) -> bytes:
        return _QUAD.pack(self.original)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        return cls(*_QUAD.unpack_from(data, offset))


@dataclass(slots=True)
class XRCETH:
    """XRC Extended Transport Header ([IBTA] Annex A14)."""

    SIZE: ClassVar[int] = 4

    srqn: int

    def pack(self) -> bytes:
        return _WORD.pack(self.srqn)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        return cls(_WORD.unpack_from(data, offset)[0] & 0xFFFFFF)


@dataclass(slots=True)
class RDETH:
    """Reliable Datagram Extended Transport Header ([IBTA] 9.3.1)."""

    SIZE: ClassVar[int] = 4

    ee_context: int

    def pack(self) -> bytes:
        return _WORD.pack(self.ee_context)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        return cls(_WORD.unpack_from(data, offset)[0] & 0xFFFFFF)


@dataclass(slots=True)
class FETH:
    """FLUSH Extended Transport Header ([IBTA] Annex A19)."""

    SIZE: ClassVar[int] = 4

    placement: int
    """PLT: bit 0 global visibility, bit 1 persistence."""
    selectivity: int = 0
    """SEL: 0 the range in the RETH, 1 the whole region."""

    def pack(self) -> bytes:
        return _WORD.pack(self.selectivity << 4 | self.placement)

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        (word,) = _WORD.unpack_from(data, offset)
        return cls(word & 15, word >> 4 & 3)


@dataclass(slots=True)
class CNPPad:
    """The 16 reserved bytes after a CNP's BTH ([IBTA] Annex A17)."""

    SIZE: ClassVar[int] = 16

    reserved: bytes = bytes(16)

    def pack(self) -> bytes:
        return self.reserved

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        return cls(bytes(data[offset : offset + 16]))


ExtensionHeader = (
    RETH | AETH | DETH | ImmDt | IETH | AtomicETH | AtomicAckETH | XRCETH | RDETH | FETH | CNPPad
)
