"""The requester's little language: one line, one work request.

    write TARGET DATA             read TARGET LENGTH [>LOCAL]      send DATA
    fetch-add TARGET ADDEND       cmp-swap TARGET COMPARE SWAP
    atomic-write TARGET DATA      flush TARGET LENGTH

TARGET is ``NAME+OFFSET``, a region that the responder advertised, or ``@VA/RKEY`` in numbers.
DATA is a word, a "quoted text", ``hex:0011ff``, ``zeros:64``, ``fill:64``, ``u64:7``, or
``<LOCAL:LENGTH``.  LOCAL is ``NAME+OFFSET`` of a region of the requester's own.  Options follow:
``imm=NUMBER``, ``lkey=NUMBER`` (in place of the right one), ``fence``, ``solicited``,
``unsignaled``, ``inline``.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field

from rocemu.daemon.regions import parse_int, parse_size
from rocemu.transport import QPCap
from rocemu.verbs import SendFlags, WROpcode

__all__ = [
    "DATA_FORMS",
    "OPERATION_VERBS",
    "LocalPlace",
    "Operation",
    "OperationError",
    "Target",
    "fill",
    "parse_data",
    "parse_operations",
    "parse_place",
]

_TARGET = re.compile(r"([A-Za-z_][\w.-]*)(?:\+(\w+))?")
_RAW = re.compile(r"@(\w+)/(\w+)")
_U64 = (1 << 64) - 1
#: Twice the longest message: one that is too long is a story too (IBV_WC_LOC_LEN_ERR).
_LONGEST = (1 << 32) - 1
_LONGEST_LITERAL = 1 << 26
DATA_FORMS = ("hex", "zeros", "fill", "u64")
_MOST_INLINE = QPCap().max_inline_data

_FLAGS = {
    "fence": SendFlags.IBV_SEND_FENCE,
    "solicited": SendFlags.IBV_SEND_SOLICITED,
    "inline": SendFlags.IBV_SEND_INLINE,
}

# verb -> opcode, opcode with immediate, what follows the verb
_VERBS: dict[str, tuple[WROpcode, WROpcode | None, tuple[str, ...]]] = {
    "write": (
        WROpcode.IBV_WR_RDMA_WRITE,
        WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM,
        ("target", "data"),
    ),
    "send": (WROpcode.IBV_WR_SEND, WROpcode.IBV_WR_SEND_WITH_IMM, ("data",)),
    "read": (WROpcode.IBV_WR_RDMA_READ, None, ("target", "length")),
    "fetch-add": (WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD, None, ("target", "addend")),
    "cmp-swap": (WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP, None, ("target", "compare", "swap")),
    "atomic-write": (WROpcode.IBV_WR_ATOMIC_WRITE, None, ("target", "data")),
    "flush": (WROpcode.IBV_WR_FLUSH, None, ("target", "extent")),
}

OPERATION_VERBS = tuple(_VERBS)


class OperationError(ValueError):
    """A line that is no operation; ``str()`` says what is wrong and what is allowed."""


@dataclass(frozen=True, slots=True)
class Target:
    """Remote memory: a region's name and an offset, or an address and a key."""

    name: str | None
    offset: int
    rkey: int = 0

    def __str__(self) -> str:
        return f"{self.name}+{self.offset}" if self.name else f"@{self.offset:#x}/{self.rkey:#x}"


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """Local memory: a region's name and an offset."""

    name: str
    offset: int


@dataclass(slots=True)
class Operation:
    """A parsed line; which fields count depends on ``opcode``."""

    text: str
    opcode: WROpcode
    target: Target | None = None
    data: bytes = b""
    """WRITE and SEND from a literal."""
    length: int = 0
    """READ, and WRITE or SEND from a local region."""
    local: LocalPlace | None = None
    """Where data comes from (``<``) or goes to (``>``)."""
    compare_add: int = 0
    swap: int = 0
    immediate: int | None = None
    invalidate: int | None = None
    """R_Key that a SEND asks to invalidate."""
    extent: int = 0
    """FLUSH: bytes; nothing of ours is sent or written."""
    placement: int = 1
    selectivity: int = 0
    lkey: int | None = None
    flags: SendFlags = field(default=SendFlags.IBV_SEND_SIGNALED)


def parse_operations(lines: Iterable[str]) -> list[Operation]:
    """Read operations, one a line; empty lines and ``#`` comments are passed over.

    Raises :class:`OperationError`.
    """
    stripped = (line.strip() for line in lines)
    return [_parse(line) for line in stripped if line and not line.startswith("#")]


def _parse(text: str) -> Operation:
    try:
        words = shlex.split(text)
        verb, arguments = words[0], words[1:]
        if verb not in _VERBS:
            raise ValueError(f"no operation {verb!r}; there are {', '.join(_VERBS)}")
        plain, with_immediate, wanted = _VERBS[verb]
        operation = Operation(text, plain)
        if len(arguments) < len(wanted):
            raise ValueError(f"{verb} needs {' '.join(word.upper() for word in wanted)}")
        for what, word in zip(wanted, arguments, strict=False):
            _ARGUMENTS[what](operation, word)
        for word in arguments[len(wanted) :]:
            _option(operation, verb, word)
        _check_inline(operation, verb)
    except ValueError as error:
        raise OperationError(f"{text!r}: {error}") from None
    if operation.immediate is not None:
        if with_immediate is None or operation.invalidate is not None:
            raise OperationError(f"{text!r}: {verb} takes no immediate")
        operation.opcode = with_immediate
    return operation


def _target(operation: Operation, word: str) -> None:
    if raw := _RAW.fullmatch(word):
        va = parse_int(raw[1], "address", _U64)
        operation.target = Target(None, va, parse_int(raw[2], "R_Key", 0xFFFFFFFF))
    elif named := _TARGET.fullmatch(word):
        operation.target = Target(named[1], parse_int(named[2] or "0", "offset", _U64))
    else:
        raise ValueError(f"target {word!r}: the forms are NAME+OFFSET and @VA/RKEY")


def parse_place(word: str) -> LocalPlace:
    """Read ``NAME+OFFSET``; raises ValueError."""
    named = _TARGET.fullmatch(word)
    if named is None:
        raise ValueError(f"local place {word!r}: the form is NAME+OFFSET")
    return LocalPlace(named[1], parse_int(named[2] or "0", "offset", _U64))


def fill(count: int) -> bytes:
    """Bytes that differ from place to place, also across path MTUs."""
    return bytes((i + (i >> 8)) % 251 for i in range(count))


def parse_data(word: str) -> bytes:
    """``text``, ``hex:0011ff``, ``zeros:64``, ``fill:1024`` (:func:`fill`), ``u64:7`` (8 bytes in
    host order, as atomics work on); raises ValueError."""
    form, colon, value = word.partition(":")
    if not colon or form not in DATA_FORMS:
        return word.encode()
    if form == "hex":
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise ValueError(f"{word!r}: pairs of hexadecimal digits follow hex:") from None
    if form == "u64":
        return parse_int(value, "number", _U64).to_bytes(8, "little")
    size = parse_size(value, most=_LONGEST_LITERAL)
    return bytes(size) if form == "zeros" else fill(size)


def _data(operation: Operation, word: str) -> None:
    if word.startswith("<"):
        place, colon, length = word[1:].partition(":")
        if not colon:
            raise ValueError(f"{word!r}: the form is <NAME+OFFSET:LENGTH")
        operation.local, operation.length = parse_place(place), parse_size(length, most=_LONGEST)
    else:
        operation.data = parse_data(word)


def _length(operation: Operation, word: str) -> None:
    operation.length = parse_size(word, most=_LONGEST)


def _compare_add(operation: Operation, word: str) -> None:
    operation.compare_add, operation.length = parse_int(word, "operand", _U64), 8


def _swap(operation: Operation, word: str) -> None:
    operation.swap = parse_int(word, "operand", _U64)


def _extent(operation: Operation, word: str) -> None:
    operation.extent = parse_size(word)


_ARGUMENTS = {
    "target": _target,
    "data": _data,
    "length": _length,
    "addend": _compare_add,
    "compare": _compare_add,
    "swap": _swap,
    "extent": _extent,
}


def _option(operation: Operation, verb: str, word: str) -> None:
    name, _, value = word.partition("=")
    if word.startswith(">"):
        if operation.target is None or operation.data or operation.local:
            raise ValueError(f"{word!r}: only what comes back can be put somewhere")
        operation.local = parse_place(word[1:])
    elif name == "imm":
        operation.immediate = parse_int(value, "immediate", 0xFFFFFFFF)
    elif name == "inv" and verb == "send":
        operation.invalidate = parse_int(value, "R_Key", 0xFFFFFFFF)
        operation.opcode = WROpcode.IBV_WR_SEND_WITH_INV
    elif name == "plt" and verb == "flush":
        operation.placement = parse_int(value, "placement", 15)
    elif name == "sel" and verb == "flush":
        operation.selectivity = parse_int(value, "selectivity", 3)
    elif name == "lkey":
        operation.lkey = parse_int(value, "lkey", 0xFFFFFFFF)
    elif word in _FLAGS:
        operation.flags |= _FLAGS[word]
    elif word == "unsignaled":
        operation.flags &= ~SendFlags.IBV_SEND_SIGNALED
    else:
        special = {"send": ["inv=RKEY"], "flush": ["plt=N", "sel=N"]}.get(verb, [])
        allowed = ["imm=N", "lkey=N", ">NAME+OFFSET", *special, *_FLAGS, "unsignaled"]
        raise ValueError(f"{word!r} is no option; there are {', '.join(allowed)}")


def _check_inline(operation: Operation, verb: str) -> None:
    if operation.flags & SendFlags.IBV_SEND_INLINE:
        if "data" not in _VERBS[verb][2]:
            raise ValueError(f"inline: {verb} sends no data")
        size = len(operation.data) or operation.length
        if size > _MOST_INLINE:
            raise ValueError(f"inline: {size} bytes, allowed are {_MOST_INLINE}")
