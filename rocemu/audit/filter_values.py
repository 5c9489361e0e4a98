"""Values in display filters: how a literal is read for a field, and how values are compared."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Any, NamedTuple

from rocemu.audit.field_table import ALIASES, FIELDS
from rocemu.audit.fields import Kind, Value, values_of

if TYPE_CHECKING:
    from rocemu.audit.dissect import Dissected

__all__ = [
    "COMPARISONS",
    "READERS",
    "Comparison",
    "FilterError",
    "Operand",
    "Test",
    "between",
    "field_operand",
    "parse_slice",
    "pattern",
    "read_value",
]

Test = Callable[[Value], bool]
Slice = Callable[[Any], Any]


class FilterError(ValueError):
    """What is wrong with a filter; ``position`` counts characters from 0."""

    def __init__(self, problem: str, position: int) -> None:
        super().__init__(f"{problem}, at character {position + 1}")
        self.position = position


class Operand(NamedTuple):
    """A field, or a slice of one."""

    name: str
    kind: Kind
    values: Callable[[Dissected], tuple[Value, ...]]

    @property
    def of(self) -> str:
        """What it can be compared with: fields of the same."""
        if self.kind in (Kind.DEC, Kind.HEX, Kind.BOOL):
            return "number"
        return str(self.kind.value)

    def sliced(self, cut: Slice, at: int) -> Operand:
        if not self.kind.is_bytes and self.kind is not Kind.TEXT:
            raise FilterError(f"{self.name} is a {self.kind.value}, it has no parts", at)
        values = self.values

        def part(packet: Dissected) -> tuple[Value, ...]:
            return tuple(piece for value in values(packet) if (piece := cut(value)))

        return Operand(self.name, Kind.BYTES if self.kind.is_bytes else Kind.TEXT, part)


def field_operand(name: str) -> Operand:
    """The operand of a name in FIELDS or ALIASES."""
    fields = [FIELDS[part] for part in ALIASES.get(name, (name,))]
    if len(fields) == 1:
        field = fields[0]
        return Operand(name, field.kind, lambda packet: values_of(field, packet))

    def values(packet: Dissected) -> tuple[Value, ...]:
        return tuple(value for field in fields for value in values_of(field, packet))

    return Operand(name, fields[0].kind, values)


_PIECE = re.compile(r"\s*(-?\d+)?\s*(?:(:)\s*(\d+)?|-\s*(-?\d+))?\s*")


def parse_slice(text: str, at: int) -> Slice:
    """``[offset:length, first-last, byte, :length, offset:]``; a part that is not whole is none."""
    pieces: list[tuple[int, int | None, bool]] = []  # offset, length or end, whether an end
    for piece in text[1:-1].split(","):
        found = _PIECE.fullmatch(piece)
        if found is None or not piece.strip() or piece.strip() == ":":
            raise FilterError(f"{text} is no slice", at)
        start, colon, length, end = found.groups()
        if end is not None:
            pieces.append((int(start or 0), int(end), True))
        elif colon:
            pieces.append((int(start or 0), None if length is None else int(length), False))
        else:
            pieces.append((int(start), 1, False))
    if any(length == 0 and not is_end for _, length, is_end in pieces):
        raise FilterError(f"{text} is empty", at)

    def cut(value: Any) -> Any:
        whole = value[:0]
        for start, length, is_end in pieces:
            first = start + len(value) if start < 0 else start
            if length is None:
                last = len(value)
            elif is_end:
                last = (length + len(value) if length < 0 else length) + 1
            else:
                last = first + length
            if not 0 <= first < last <= len(value):
                return None
            whole += value[first:last]
        return whole

    return cut


class Network(NamedTuple):
    """An address literal with a prefix length: compared under its mask."""

    octets: bytes
    bits: int


Literal = Value | Network


class Comparison(NamedTuple):
    """One operator."""

    test: Callable[[Any, Any], bool]
    of_all: bool = False
    """Whether all values of the field must pass; else one is enough."""
    needs_parts: bool = False

    def check(self, left: Operand, at: int) -> None:
        if self.needs_parts and not left.kind.is_bytes and left.kind is not Kind.TEXT:
            raise FilterError(f"{left.name} is a {left.kind.value}, it contains nothing", at)

    def against(self, literal: Literal) -> Test:
        compare = self.test
        if not isinstance(literal, Network):
            return lambda value: compare(value, literal)
        spare = len(literal.octets) * 8 - literal.bits
        wanted = int.from_bytes(literal.octets, "big") >> spare

        def masked(value: Value) -> bool:
            assert isinstance(value, bytes)
            return compare(int.from_bytes(value, "big") >> spare, wanted)

        return masked


#: Operator -> what it does.
COMPARISONS: dict[str, Comparison] = {
    "==": Comparison(operator.eq),
    "!=": Comparison(operator.ne, of_all=True),
    "<": Comparison(operator.lt),
    ">": Comparison(operator.gt),
    "<=": Comparison(operator.le),
    ">=": Comparison(operator.ge),
    "contains": Comparison(operator.contains, needs_parts=True),
}


def read_value(text: str, at: int, field: Operand) -> Literal:
    """A literal as a value of ``field``; ``text`` has its quotes where it is quoted."""
    kind = field.kind
    quoted = _unquoted(text, at)
    try:
        if kind is Kind.TEXT:
            return text if quoted is None else quoted
        if kind is Kind.BYTES and quoted is not None:
            return quoted.encode()
        return READERS[kind](text)
    except (ValueError, InvalidOperation):
        raise FilterError(f"{text} is no {kind.value}, as {field.name} is", at) from None


def between(low: Literal, high: Literal) -> Test:
    """A member ``low..high`` of a set."""
    first, last = COMPARISONS[">="].against(low), COMPARISONS["<="].against(high)
    return lambda value: first(value) and last(value)


def pattern(token: tuple[str, str, int], field: Operand) -> Test:
    """``matches``: a regular expression, without regard to case, as Wireshark does it."""
    _, text, at = token
    quoted = text[1:-1] if text.startswith('"') else text[2:-1] if text.startswith('r"') else None
    if quoted is None:
        raise FilterError("matches takes a quoted regular expression", at)
    expression = quoted.replace('\\"', '"')
    try:
        if field.kind is Kind.TEXT:
            search: Any = re.compile(expression, re.IGNORECASE).search
        elif field.kind.is_bytes:
            search = re.compile(expression.encode("latin-1"), re.IGNORECASE).search
        else:
            raise FilterError(f"{field.name} is a {field.kind.value}, matches takes text", at)
    except (re.error, UnicodeError, OverflowError) as error:
        raise FilterError(f"{text} is no regular expression ({error})", at) from None
    return lambda value: search(value) is not None


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "0": "\0", "'": "'"}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)


def _unquoted(text: str, at: int) -> str | None:
    if text.startswith('r"'):
        return text[2:-1]
    if not text.startswith('"'):
        return None

    def plain(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        if found[2] not in _ESCAPES:
            raise FilterError(f"\\{found[2]} is no escape", at + found.start() + 1)
        return _ESCAPES[found[2]]

    return _ESCAPE.sub(plain, text[1:-1])


def _number(text: str) -> int:
    """Decimal, 0x, 0b, or octal with a leading 0."""
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    if "_" in text or len(text) > 40:
        raise ValueError
    return int(text, 0)


def _boolean(text: str) -> int:
    words = {"true": 1, "false": 0}
    return words[text.lower()] if text.lower() in words else _number(text)


def _seconds(text: str) -> int:
    return int(Decimal(text) * 10**9)


def _bytes(text: str) -> bytes:
    digits = re.sub(r"[:.-]", "", text.removeprefix("0x"))
    return bytes.fromhex(digits if len(digits) > 1 else f"0{digits}")


def _mac(text: str) -> bytes:
    octets = _bytes(text)
    if len(octets) != 6:
        raise ValueError
    return octets


def _address(kind: type[IPv4Network] | type[IPv6Network]) -> Callable[[str], Literal]:
    def read(text: str) -> Literal:
        network = ip_network(text, strict=False)
        if not isinstance(network, kind):
            raise ValueError
        octets = network.network_address.packed
        return Network(octets, network.prefixlen) if "/" in text else octets

    return read


#: How a value of each kind is written, quoted text apart; ValueError for anything else.
READERS: dict[Kind, Callable[[str], Literal]] = {
    Kind.DEC: _number,
    Kind.HEX: _number,
    Kind.BOOL: _boolean,
    Kind.SECONDS: _seconds,
    Kind.BYTES: _bytes,
    Kind.ETHER: _mac,
    Kind.IPV4: _address(IPv4Network),
    Kind.IPV6: _address(IPv6Network),
}
