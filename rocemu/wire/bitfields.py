"""Blocks of bit fields: a dataclass whose fields say where they are on the wire.

:func:`layout` gives the table of such a class (name, first bit, width); the codec here and the
Scapy layers both read it.  Reserved bits are written as zero and not looked at.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self

from rocemu.wire.errors import WireError

__all__ = ["BitFields", "Field", "at", "layout"]


class Field(NamedTuple):
    """One row of a layout: ``bits`` bits from bit ``start`` on, most significant first."""

    name: str
    start: int
    bits: int
    kind: type
    """int, bool (one bit) or bytes (whole octets, zero-filled at the end)."""


def at(byte: int, bits: int = 8, *, bit: int = 0, default: int | bytes = 0) -> Any:
    """A dataclass field at ``bit`` (0 is the most significant one) of octet ``byte``."""
    return field(default=default, metadata={"at": (byte * 8 + bit, bits, type(default))})


def layout(cls: type["BitFields"]) -> tuple[Field, ...]:
    """The bit-field table of a BitFields class, in wire order; what it leaves out is reserved."""
    rows = [Field(row.name, *row.metadata["at"]) for row in fields(cls) if "at" in row.metadata]
    return tuple(sorted(rows, key=lambda row: row.start))


@dataclass(slots=True, kw_only=True)
class BitFields:
    """A block of :data:`SIZE` bytes whose fields are declared with :func:`at`."""

    SIZE: ClassVar[int]

    def pack(self) -> bytes:
        """Raises WireError (reason ``mad``) for a value that its field does not hold."""
        word = 0
        for name, start, bits, kind in layout(type(self)):
            value = getattr(self, name)
            if kind is bytes:
                if len(value) * 8 > bits:
                    raise WireError("mad", f"{name}: {len(value)} bytes, at most {bits // 8} fit")
                value = int.from_bytes(value.ljust(bits // 8, b"\0"), "big")
            elif not 0 <= value < 1 << bits:
                raise WireError("mad", f"{name}: {value} does not fit into {bits} bits")
            word |= value << self.SIZE * 8 - start - bits
        return word.to_bytes(self.SIZE, "big")

    @classmethod
    def unpack(cls, data: bytes | memoryview, offset: int = 0) -> Self:
        """Raises WireError (reason ``mad``) for fewer than :data:`SIZE` bytes."""
        octets = data[offset : offset + cls.SIZE]
        if len(octets) < cls.SIZE:
            raise WireError("mad", f"{len(octets)} bytes, {cls.__name__} has {cls.SIZE}")
        word = int.from_bytes(octets, "big")
        values: dict[str, Any] = {}
        for name, start, bits, kind in layout(cls):
            value = word >> cls.SIZE * 8 - start - bits & (1 << bits) - 1
            values[name] = value.to_bytes(bits // 8, "big") if kind is bytes else kind(value)
        return cls(**values)
