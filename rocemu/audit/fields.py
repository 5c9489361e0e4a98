"""Fields of packets under Wireshark's names: where each is, how it is read and shown.

One table, :data:`rocemu.audit.field_table.FIELDS`, serves the filter, the tree, JSON and vectors.
A field is some bits of a *layer*; a dissected packet says where its layers are.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rocemu.audit.dissect import Dissected

__all__ = ["Field", "Kind", "Value", "ipv6_text", "json_value", "show", "value_of", "values_of"]

Value = int | bytes | str
"""Numbers, booleans (0, 1) and times (nanoseconds) are int, addresses are bytes."""


_MAPPED = bytes(10) + b"\xff\xff"


class Kind(Enum):
    """What a field's value is and how it is written."""

    DEC = "number"
    HEX = "hexadecimal number"
    BOOL = "boolean"
    SECONDS = "time"
    BYTES = "bytes"
    ETHER = "Ethernet address"
    IPV4 = "IPv4 address"
    IPV6 = "IPv6 address"
    TEXT = "text"

    @property
    def is_bytes(self) -> bool:
        return self in (Kind.BYTES, Kind.ETHER, Kind.IPV4, Kind.IPV6)


class Field(NamedTuple):
    """One row of the table."""

    name: str
    layer: str
    """Key of the layer, see :mod:`rocemu.audit.field_table`."""
    start: int
    """First bit within the layer, 0 being the most significant one of its first byte."""
    bits: int
    """0: the whole of the layer from ``start`` on."""
    kind: Kind
    label: str
    words: Callable[[int], str] | None = None
    """What a number means."""
    get: Callable[[Dissected], tuple[Value, ...]] | None = None
    """For what is not in the bytes: the values, none where the packet has none."""


def value_of(field: Field, packet: Dissected) -> Value | None:
    """The value of a field that is in the bytes; None where the packet has none, or it was cut."""
    span = packet.layers.get(field.layer)
    if span is None:
        return None
    first, last = field.start >> 3, field.start + field.bits + 7 >> 3
    data = packet.captured.data
    start = span[0] + first
    if not field.bits:
        return bytes(data[start : span[1]]) if start <= len(data) else None
    end = span[0] + last
    if end > len(data) or end > span[1]:
        return None
    octets = data[start:end]
    if field.kind.is_bytes:
        return bytes(octets)
    spare = (last << 3) - field.start - field.bits
    return int.from_bytes(octets, "big") >> spare & (1 << field.bits) - 1


def values_of(field: Field, packet: Dissected) -> tuple[Value, ...]:
    """All values that a packet has of a field: none, one, or (``ip.addr``) several."""
    if field.get is not None:
        return field.get(packet)
    value = value_of(field, packet)
    return () if value is None else (value,)


def show(field: Field, value: Value) -> str:
    """A value as Wireshark writes it."""
    match field.kind, value:
        case Kind.HEX, int():
            return f"{value:#0{(field.bits + 3) // 4 + 2}x}"
        case Kind.BOOL, int():
            return str(bool(value))
        case Kind.SECONDS, int():
            sign, rest = ("-", -value) if value < 0 else ("", value)
            return f"{sign}{rest // 10**9}.{rest % 10**9:09}"
        case Kind.IPV4, bytes():
            return str(IPv4Address(value))
        case Kind.IPV6, bytes():
            return ipv6_text(value)
        case _, bytes():
            return value.hex(":")
        case _:
            return str(value)


def ipv6_text(octets: bytes) -> str:
    """An IPv6 address; a mapped IPv4 address as ``::ffff:192.0.2.1``, in every Python."""
    if octets.startswith(_MAPPED):
        return f"::ffff:{IPv4Address(octets[12:])}"
    return str(IPv6Address(octets))


def json_value(field: Field, value: Value) -> int | bool | str:
    """Numbers and booleans as they are, all else as text (bytes as plain hex)."""
    match field.kind, value:
        case Kind.BOOL, int():
            return bool(value)
        case ((Kind.DEC | Kind.HEX), int()):
            return value
        case Kind.BYTES, bytes():
            return value.hex()
        case _:
            return show(field, value)
