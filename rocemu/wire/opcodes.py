"""The one opcode table ([IBTA] table "OpCode field", Annexes A14, A17, A19).

An opcode is a transport (bits 7:5) and an operation (bits 4:0).  Builder, parser, layers, transport
and documents all read :data:`OPCODES`; no other place lists opcodes or header chains.
"""

import difflib
import re
from dataclasses import dataclass
from enum import Enum, IntEnum

__all__ = [
    "CNP_OPCODE",
    "HEADER_SIZES",
    "OPCODES",
    "Op",
    "OpcodeInfo",
    "Operation",
    "PayloadRule",
    "Position",
    "Transport",
    "find_opcode",
    "opcode_name",
    "plain_name",
]


class Transport(IntEnum):
    """Transport prefix of an opcode; RC is 0, so an RC opcode equals its :class:`Op`."""

    RC = 0x00
    UC = 0x20
    RD = 0x40
    UD = 0x60
    CNP = 0x80
    XRC = 0xA0


class Op(IntEnum):
    """Bits 4:0 of an opcode."""

    SEND_FIRST = 0x00
    SEND_MIDDLE = 0x01
    SEND_LAST = 0x02
    SEND_LAST_WITH_IMMEDIATE = 0x03
    SEND_ONLY = 0x04
    SEND_ONLY_WITH_IMMEDIATE = 0x05
    RDMA_WRITE_FIRST = 0x06
    RDMA_WRITE_MIDDLE = 0x07
    RDMA_WRITE_LAST = 0x08
    RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09
    RDMA_WRITE_ONLY = 0x0A
    RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0B
    RDMA_READ_REQUEST = 0x0C
    RDMA_READ_RESPONSE_FIRST = 0x0D
    RDMA_READ_RESPONSE_MIDDLE = 0x0E
    RDMA_READ_RESPONSE_LAST = 0x0F
    RDMA_READ_RESPONSE_ONLY = 0x10
    ACKNOWLEDGE = 0x11
    ATOMIC_ACKNOWLEDGE = 0x12
    COMPARE_SWAP = 0x13
    FETCH_ADD = 0x14
    RESYNC = 0x15
    SEND_LAST_WITH_INVALIDATE = 0x16
    SEND_ONLY_WITH_INVALIDATE = 0x17
    FLUSH = 0x1C
    ATOMIC_WRITE = 0x1D


#: RoCEv2's congestion notification packet (Annex A17); InfiniBand's own 0x80 is never answered.
CNP_OPCODE = 0x81


class Operation(Enum):
    """What kind of work a packet belongs to."""

    SEND = "SEND"
    RDMA_WRITE = "RDMA WRITE"
    RDMA_READ = "RDMA READ"
    READ_RESPONSE = "RDMA READ response"
    ACKNOWLEDGE = "Acknowledge"
    ATOMIC_ACKNOWLEDGE = "ATOMIC Acknowledge"
    COMPARE_SWAP = "CmpSwap"
    FETCH_ADD = "FetchAdd"
    RESYNC = "RESYNC"
    FLUSH = "FLUSH"
    ATOMIC_WRITE = "ATOMIC WRITE"
    CNP = "CNP"


class Position(Enum):
    """Where in its message a packet stands."""

    FIRST = "First"
    MIDDLE = "Middle"
    LAST = "Last"
    ONLY = "Only"


class PayloadRule(Enum):
    """How many payload bytes an opcode carries, PMTU being the path MTU."""

    NONE = "none"
    FULL = "exactly PMTU"
    SOME = "1..PMTU"
    ANY = "0..PMTU"
    EIGHT = "exactly 8"


#: Bytes of each header that may follow the BTH.
HEADER_SIZES = {
    "RDETH": 4,
    "DETH": 8,
    "XRCETH": 4,
    "FETH": 4,
    "RETH": 16,
    "AtomicETH": 28,
    "AETH": 4,
    "AtomicAckETH": 8,
    "ImmDt": 4,
    "IETH": 4,
    "CNPPad": 16,
}


@dataclass(frozen=True, slots=True)
class OpcodeInfo:
    """One row of the opcode table."""

    opcode: int
    name: str
    transport: Transport
    operation: Operation
    position: Position
    headers: tuple[str, ...]
    """Names of the headers after the BTH, in wire order; keys of :data:`HEADER_SIZES`."""
    payload: PayloadRule
    is_request: bool
    header_bytes: int
    """Bytes of all headers after the BTH."""

    @property
    def starts_message(self) -> bool:
        return self.position in (Position.FIRST, Position.ONLY)

    @property
    def ends_message(self) -> bool:
        return self.position in (Position.LAST, Position.ONLY)

    @property
    def has_immediate(self) -> bool:
        return "ImmDt" in self.headers

    @property
    def has_invalidate(self) -> bool:
        return "IETH" in self.headers


_S, _W, _R = Operation.SEND, Operation.RDMA_WRITE, Operation.READ_RESPONSE
_F, _M, _L, _O = Position.FIRST, Position.MIDDLE, Position.LAST, Position.ONLY
_NONE, _FULL, _SOME, _ANY = (
    PayloadRule.NONE,
    PayloadRule.FULL,
    PayloadRule.SOME,
    PayloadRule.ANY,
)

_ALL, _RELIABLE, _INVALIDATING = "RC UC RD XRC", "RC RD XRC", "RC XRC"

# fmt: off
# operation bits, name, kind, position, headers of RC and UC, payload, transports that have it
_ROWS: tuple[tuple[Op, str, Operation, Position, str, PayloadRule, str], ...] = (
    (Op.SEND_FIRST, "SEND First", _S, _F, "", _FULL, _ALL),
    (Op.SEND_MIDDLE, "SEND Middle", _S, _M, "", _FULL, _ALL),
    (Op.SEND_LAST, "SEND Last", _S, _L, "", _SOME, _ALL),
    (Op.SEND_LAST_WITH_IMMEDIATE, "SEND Last with Immediate", _S, _L, "ImmDt", _SOME, _ALL),
    (Op.SEND_ONLY, "SEND Only", _S, _O, "", _ANY, "RC UC RD UD XRC"),
    (Op.SEND_ONLY_WITH_IMMEDIATE, "SEND Only with Immediate", _S, _O, "ImmDt", _ANY,
     "RC UC RD UD XRC"),
    (Op.RDMA_WRITE_FIRST, "RDMA WRITE First", _W, _F, "RETH", _FULL, _ALL),
    (Op.RDMA_WRITE_MIDDLE, "RDMA WRITE Middle", _W, _M, "", _FULL, _ALL),
    (Op.RDMA_WRITE_LAST, "RDMA WRITE Last", _W, _L, "", _SOME, _ALL),
    (Op.RDMA_WRITE_LAST_WITH_IMMEDIATE, "RDMA WRITE Last with Immediate", _W, _L, "ImmDt", _SOME,
     _ALL),
    (Op.RDMA_WRITE_ONLY, "RDMA WRITE Only", _W, _O, "RETH", _ANY, _ALL),
    (Op.RDMA_WRITE_ONLY_WITH_IMMEDIATE, "RDMA WRITE Only with Immediate", _W, _O, "RETH ImmDt",
     _ANY, _ALL),
    (Op.RDMA_READ_REQUEST, "RDMA READ Request", Operation.RDMA_READ, _O, "RETH", _NONE, _RELIABLE),
    (Op.RDMA_READ_RESPONSE_FIRST, "RDMA READ Response First", _R, _F, "AETH", _FULL, _RELIABLE),
    (Op.RDMA_READ_RESPONSE_MIDDLE, "RDMA READ Response Middle", _R, _M, "", _FULL, _RELIABLE),
    (Op.RDMA_READ_RESPONSE_LAST, "RDMA READ Response Last", _R, _L, "AETH", _SOME, _RELIABLE),
    (Op.RDMA_READ_RESPONSE_ONLY, "RDMA READ Response Only", _R, _O, "AETH", _ANY, _RELIABLE),
    (Op.ACKNOWLEDGE, "Acknowledge", Operation.ACKNOWLEDGE, _O, "AETH", _NONE, _RELIABLE),
    (Op.ATOMIC_ACKNOWLEDGE, "ATOMIC Acknowledge", Operation.ATOMIC_ACKNOWLEDGE, _O,
     "AETH AtomicAckETH", _NONE, _RELIABLE),
    (Op.COMPARE_SWAP, "CmpSwap", Operation.COMPARE_SWAP, _O, "AtomicETH", _NONE, _RELIABLE),
    (Op.FETCH_ADD, "FetchAdd", Operation.FETCH_ADD, _O, "AtomicETH", _NONE, _RELIABLE),
    (Op.RESYNC, "RESYNC", Operation.RESYNC, _O, "", _NONE, "RD"),
    (Op.SEND_LAST_WITH_INVALIDATE, "SEND Last with Invalidate", _S, _L, "IETH", _SOME,
     _INVALIDATING),
    (Op.SEND_ONLY_WITH_INVALIDATE, "SEND Only with Invalidate", _S, _O, "IETH", _ANY,
     _INVALIDATING),
    (Op.FLUSH, "FLUSH", Operation.FLUSH, _O, "FETH RETH", _NONE, _RELIABLE),
    # ATOMIC WRITE on RD and XRC is not settled by any source we could read: RC alone.
    (Op.ATOMIC_WRITE, "ATOMIC WRITE", Operation.ATOMIC_WRITE, _O, "RETH", PayloadRule.EIGHT, "RC"),
)
# fmt: on

_RESPONSES = frozenset(
    {Operation.READ_RESPONSE, Operation.ACKNOWLEDGE, Operation.ATOMIC_ACKNOWLEDGE}
)
# What a transport puts between the BTH and the headers that RC has.
_Prefixes = dict[Transport, tuple[str, ...]]
_REQUEST_PREFIX: _Prefixes = {
    Transport.RD: ("RDETH", "DETH"),
    Transport.UD: ("DETH",),
    Transport.XRC: ("XRCETH",),
}
_RESPONSE_PREFIX: _Prefixes = {Transport.RD: ("RDETH",)}
# Annex A19 has no DETH in RD's FLUSH.  XRC's value 0xBC follows from the prefix rule: unsure.
_FLUSH_PREFIX: _Prefixes = {Transport.RD: ("RDETH",), Transport.XRC: ("XRCETH",)}


def _table() -> dict[int, OpcodeInfo]:
    table = {}
    for op, name, operation, position, headers, payload, transports in _ROWS:
        is_request = operation not in _RESPONSES
        for transport in (Transport[word] for word in transports.split()):
            if operation is Operation.FLUSH:
                prefixes = _FLUSH_PREFIX
            else:
                prefixes = _REQUEST_PREFIX if is_request else _RESPONSE_PREFIX
            chain = prefixes.get(transport, ()) + tuple(headers.split())
            table[transport | op] = OpcodeInfo(
                opcode=transport | op,
                name=f"{transport.name} {name}",
                transport=transport,
                operation=operation,
                position=position,
                headers=chain,
                payload=payload,
                is_request=is_request,
                header_bytes=sum(HEADER_SIZES[header] for header in chain),
            )
    table[CNP_OPCODE] = OpcodeInfo(
        opcode=CNP_OPCODE,
        name="CNP",
        transport=Transport.CNP,
        operation=Operation.CNP,
        position=Position.ONLY,
        headers=("CNPPad",),
        payload=PayloadRule.NONE,
        is_request=False,
        header_bytes=HEADER_SIZES["CNPPad"],
    )
    return table


#: Every defined opcode, by its value; a value that is not a key is reserved.
OPCODES: dict[int, OpcodeInfo] = _table()


def opcode_name(opcode: int) -> str:
    """``RC SEND Only`` for 0x04; ``reserved 0x18`` where nothing is defined."""
    info = OPCODES.get(opcode)
    return info.name if info else f"reserved {opcode:#04x}"


def plain_name(name: str) -> str:
    """A name without what people write differently: ``RC RDMA WRITE Only`` is ``rcrdmawriteonly``,
    and so is ``rc_rdma_write_only``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


# By plain name, with the transport and, for RC, without it.
_BY_NAME = {
    plain_name(name): info
    for info in OPCODES.values()
    for name in (info.name, info.name.removeprefix("RC "))
}


def find_opcode(text: str) -> int:
    """An opcode by number, reserved or not, or by name: ``RC RDMA WRITE Only``,
    ``rdma_write_only`` (RC where no transport is named), ``UD SEND Only``, ``CNP``.

    Raises ValueError with a sentence.
    """
    plain = plain_name(text)
    if plain in _BY_NAME:
        return _BY_NAME[plain].opcode
    try:
        number = int(text, 0)
    except ValueError:
        close = difflib.get_close_matches(plain, _BY_NAME, n=3, cutoff=0.5)
        names = dict.fromkeys(_BY_NAME[name].name.removeprefix("RC ") for name in close)
        hint = " or ".join(map(repr, names)) or "'RDMA WRITE Only'"
        raise ValueError(f"no opcode {text!r}; did you mean {hint}?") from None
    if not 0 <= number <= 0xFF:
        raise ValueError(f"opcode {text}: allowed are 0 to 0xff")
    return number
