"""RoCE packets that a damaged header hides: the ICRC covers the header, and so finds it out."""

from collections.abc import Iterator
from typing import NamedTuple

from rocemu.wire import ICRC_SIZE, ROCE_PORT, WireError, icrc_of_ip
from rocemu.wire.icrc import icrc_of_grh

__all__ = ["damaged_header"]


class _Field(NamedTuple):
    """A header field that decides whether a packet is RoCE."""

    name: str
    at: int
    size: int
    mask: int
    """The bits of the field that count."""
    value: int
    form: str = ""
    """How to show values."""


_IPV4 = (
    _Field("version and header length", 0, 1, 0xFF, 0x45, "#04x"),
    _Field("IP protocol", 9, 1, 0xFF, 17),
    _Field("UDP port", 22, 2, 0xFFFF, ROCE_PORT),
)
_FRAGMENTS = (
    _Field("fragment field", 6, 2, 0xFFFF, 0x4000, "#06x"),
    _Field("fragment field", 6, 2, 0xFFFF, 0x0000, "#06x"),
)
_VERSION_6 = _Field("version", 0, 1, 0xF0, 0x60)
_IPV6 = (
    _VERSION_6,
    _Field("next header", 6, 1, 0xFF, 17),
    _Field("UDP port", 42, 2, 0xFFFF, ROCE_PORT),
)
_GRH = (_VERSION_6, _Field("next header", 6, 1, 0xFF, 0x1B))
#: Fields, and where the length is that says where the packet ends, counted from where.
_SHAPES = (
    ((*_IPV4, _FRAGMENTS[0]), 24, 20),
    ((*_IPV4, _FRAGMENTS[1]), 24, 20),
    (_IPV6, 44, 40),
    (_GRH, 4, 40),
)


def damaged_header(data: bytes) -> str | None:
    """What a packet's header ought to say (``IP protocol 17, not 16``) for its ICRC to be right.

    ``data`` begins where a network header should.  None when the ICRC is wrong all the same.
    """
    for fields, length_at, base in _SHAPES:
        if len(data) < base + 16:
            continue
        repaired, changes = bytearray(data), []
        for field in fields:
            change = _repair(repaired, field)
            if change:
                changes.append(change)
        for end in _ends(data, length_at, base):
            stored = int.from_bytes(data[end - ICRC_SIZE : end], "little")
            crc = icrc_of_grh if fields is _GRH else icrc_of_ip
            try:
                if crc(bytes(repaired[: end - ICRC_SIZE])) == stored:
                    return ", ".join(changes)
            except WireError:
                continue
    return None


def _ends(data: bytes, length_at: int, base: int) -> Iterator[int]:
    """Where the packet may end: by its own length, or where the frame does."""
    end = base + int.from_bytes(data[length_at : length_at + 2], "big")
    if base + 16 <= end <= len(data):
        yield end
    yield len(data)


def _repair(data: bytearray, field: _Field) -> str | None:
    whole = int.from_bytes(data[field.at : field.at + field.size], "big")
    is_now = whole & field.mask
    if is_now == field.value:
        return None
    data[field.at : field.at + field.size] = (whole & ~field.mask | field.value).to_bytes(
        field.size, "big"
    )
    if field.mask == 0xF0:
        return f"{field.name} {field.value >> 4}, not {is_now >> 4}"
    return f"{field.name} {field.value:{field.form}}, not {is_now:{field.form}}"
