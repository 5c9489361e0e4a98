"""The opcode table as arrays, one entry for each of 256 opcodes: what columns of packets index."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from rocemu.wire import BTH, HEADER_SIZES, OPCODES, OpcodeInfo, Operation, PayloadRule, Transport

__all__ = [
    "AETH_WORD",
    "ASKING",
    "ATOMIC_WORD",
    "CLASS",
    "DEFINED",
    "DETH_WORD",
    "HEADER_BYTES",
    "RETH_WORD",
    "RULE",
    "RULES",
    "SEQUENCE",
    "VA_WORD",
    "PacketClass",
]

Array = NDArray[np.int64]


class PacketClass(IntEnum):
    """Who looks at a packet beyond what it says by itself."""

    NOTHING = 0
    """RD, reserved opcodes but for those of connections."""
    REQUEST = 1
    """Of a reliable connection, RC or XRC."""
    ANSWER = 2
    UNRELIABLE = 3
    """UC."""
    CNP = 4
    DATAGRAM = 5
    """UD: the connection manager's when it goes to QP 1."""


_CONNECTED = (Transport.RC, Transport.XRC)
_ENDED = {Operation.SEND: 1, Operation.RDMA_WRITE: 2}
#: Payload rules by number; ``RULE`` holds indexes into this.
RULES: tuple[PayloadRule, ...] = tuple(PayloadRule)


def _class_of(opcode: int) -> PacketClass:
    info = OPCODES.get(opcode)
    if info is None:  # a reserved opcode of a connection is a request, if a bad one
        return PacketClass.REQUEST if opcode & 0xE0 in _CONNECTED else PacketClass.NOTHING
    if info.transport in _CONNECTED:
        return PacketClass.REQUEST if info.is_request else PacketClass.ANSWER
    return {
        Transport.UC: PacketClass.UNRELIABLE,
        Transport.UD: PacketClass.DATAGRAM,
        Transport.CNP: PacketClass.CNP,
    }.get(info.transport, PacketClass.NOTHING)


def _word_of(info: OpcodeInfo, header: str) -> int:
    """32-bit word, from the BTH on, where a header of the opcode begins; 0 when it has none."""
    if header not in info.headers:
        return 0
    before = info.headers[: info.headers.index(header)]
    return (BTH.SIZE + sum(HEADER_SIZES[name] for name in before)) // 4


def _array(values: dict[int, int]) -> Array:
    array = np.zeros(256, np.int64)
    for opcode, value in values.items():
        array[opcode] = value
    return array


_TABLE = OPCODES.items()
DEFINED = _array(dict.fromkeys(OPCODES, 1)).astype(np.bool_)
CLASS = _array({opcode: _class_of(opcode) for opcode in range(256)})
HEADER_BYTES = _array({opcode: info.header_bytes for opcode, info in _TABLE})
RULE = _array({opcode: RULES.index(info.payload) for opcode, info in _TABLE})
RETH_WORD = _array({opcode: _word_of(info, "RETH") for opcode, info in _TABLE})
DETH_WORD = _array({opcode: _word_of(info, "DETH") for opcode, info in _TABLE})
AETH_WORD = _array({opcode: _word_of(info, "AETH") for opcode, info in _TABLE})
ATOMIC_WORD = _array({opcode: _word_of(info, "AtomicETH") for opcode, info in _TABLE})
FIRST_OR_MIDDLE = RULES.index(PayloadRule.FULL) == RULE

#: Where the virtual address is, in a RETH or an AtomicETH.
VA_WORD = RETH_WORD + ATOMIC_WORD

#: Requests that are answered with more than an acknowledge.
ASKING = frozenset(
    opcode
    for opcode, info in _TABLE
    if info.is_request and info.operation not in _ENDED and info.transport in _CONNECTED
)

#: Per opcode: the kind of message it belongs to (1 SEND, 2 WRITE, 0 one that is always a single
#: packet), whether it starts one, whether it ends one.
SEQUENCE: tuple[tuple[int, bool, bool], ...] = tuple(
    (_ENDED.get(info.operation, 0), info.starts_message, info.ends_message)
    if (info := OPCODES.get(opcode))
    else (0, True, True)
    for opcode in range(256)
)
