"""One packet from an opcode and fields by name, right or deliberately wrong.

The fields are those of the Scapy layers, reserved ones among them, so whatever a layer can say can
be sent.  What comes out is the packet from BTH to pad; the ICRC is put behind it when the flow is
known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scapy.fields import RawVal, StrField, StrFixedLenField
from scapy.packet import Raw

from layers import BTH
from layers.roce import EXTENSIONS
from rocemu import wire
from rocemu.wire import (
    ICRC_SIZE,
    OPCODES,
    Flow,
    OpcodeInfo,
    Transport,
    seal,
    verify,
)

__all__ = ["CraftError", "add_icrc", "craft", "find_opcode", "parse_bytes"]

_RELIABLE = (Transport.RC, Transport.RD, Transport.XRC)


class CraftError(ValueError):
    """An opcode, field or value that there is not; ``str()`` says what is allowed."""


def find_opcode(text: str) -> int:
    """An opcode by number, reserved or not, or by name; raises :class:`CraftError`."""
    try:
        return wire.find_opcode(text)
    except ValueError as error:
        raise CraftError(str(error)) from None


def parse_bytes(text: str) -> bytes:
    """``hex:0011ff``, or the text itself; raises :class:`CraftError`."""
    if not text.startswith("hex:"):
        return text.encode()
    try:
        return bytes.fromhex(text[4:])
    except ValueError:
        raise CraftError(
            f"{text[:40]!r}: pairs of hexadecimal digits are needed behind hex:"
        ) from None


def craft(opcode: int, values: Mapping[str, str]) -> tuple[bytes, int | None]:
    """The packet from BTH to pad, and the ICRC if one was named.

    ``values`` are texts by field name, ``psn`` or ``bth.psn``.  What is not named is computed or
    has the layer's default; ``ackreq`` is 1 on requests of reliable transports, so that something
    answers.  Raises :class:`CraftError`.
    """
    info = OPCODES.get(opcode)
    chain = [EXTENSIONS[name] for name in info.headers] if info else []
    known = _fields([BTH, *chain])
    chosen: dict[Any, dict[str, Any]] = {cls: {} for cls in (BTH, *chain)}
    chosen[BTH] = {"opcode": opcode, "ackreq": int(_wants_answer(info))}
    payload = b""
    for name, text in values.items():
        if name == "payload":
            payload = parse_bytes(text)
            continue
        if name not in known:
            what = info.name if info else f"opcode {opcode:#04x}"
            names = sorted(short for short in known if "." not in short)
            raise CraftError(f"no field {name!r} in {what}; there are {', '.join(names)}, payload")
        cls, field = known[name]
        chosen[cls][field.name] = _value(name, field, text)
    icrc: int | None = chosen[BTH].pop("icrc", None)
    packet = BTH(icrc=RawVal(b""), **chosen[BTH])
    for cls in chain:
        packet /= cls(**chosen[cls])
    return bytes(packet / Raw(payload)), icrc


def _wants_answer(info: OpcodeInfo | None) -> bool:
    return info is not None and info.is_request and info.transport in _RELIABLE


def _fields(classes: list[Any]) -> dict[str, tuple[Any, Any]]:
    """Fields by ``header.field``, and by the field's name alone where one header has it."""
    fields: dict[str, tuple[Any, Any]] = {}
    twice = set()
    for cls in classes:
        for field in cls.fields_desc:
            if field.name == "opcode":
                continue
            fields[f"{cls.__name__.lower()}.{field.name}"] = cls, field
            if field.name in fields:
                twice.add(field.name)
            fields[field.name] = cls, field
    return {name: place for name, place in fields.items() if name not in twice}


def _value(name: str, field: Any, text: str) -> Any:
    if isinstance(field, StrField):
        value = parse_bytes(text)
        if isinstance(field, StrFixedLenField) and len(value) != field.sz:
            raise CraftError(f"{name}: {field.sz} bytes are needed, these are {len(value)}")
        return value
    by_name = {key.lower(): number for key, number in getattr(field, "s2i", {}).items()}
    try:
        number = by_name[text.lower()] if text.lower() in by_name else int(text, 0)
    except ValueError:
        also = f", or a name such as {next(iter(field.s2i))!r}" if by_name else ""
        raise CraftError(f"{name}={text}: a decimal or 0x number is needed{also}") from None
    most = (1 << (getattr(field, "size", None) or int(field.sz * 8))) - 1
    if not 0 <= number <= most:
        raise CraftError(f"{name}={text}: allowed are 0 to {most:#x}")
    return number


def add_icrc(body: bytes, flow: Flow, icrc: int | None, bad: bool) -> bytes:
    """``body`` with the ICRC that was named (a number as Wireshark shows it), or the right one, or
    one that is wrong for every IP ID."""
    if icrc is not None:
        return body + icrc.to_bytes(ICRC_SIZE, "big")
    sealed = seal(body, flow)
    if not bad:
        return sealed
    right = int.from_bytes(sealed[-ICRC_SIZE:], "little")
    wrongs = (body + (right ^ flip).to_bytes(ICRC_SIZE, "little") for flip in range(1, 1 << 16))
    return next(wrong for wrong in wrongs if not verify(wrong, flow)[0])
