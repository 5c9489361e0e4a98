"""Packets in the script's words: read, built, compared, and spelled again.

    RDMA WRITE Only  psn=+0 ackreq va=rw+0 rkey=rw length=5 payload="hello"
    NAK Remote Access Error  psn=+0 msn=0

The name is an opcode's, of RC where no transport is named, or says what an Acknowledge says:
``ACK``, ``RNR NAK``, ``NAK`` with the name of its code.  Fields are those of the headers that the
opcode has.
"""

from dataclasses import asdict, fields
from typing import Any

from rocemu.daemon.operations import LocalPlace, parse_data, parse_place
from rocemu.daemon.regions import parse_int
from rocemu.scenario.data import spell_data, split
from rocemu.scenario.model import PacketText, Relative
from rocemu.wire import (
    BTH,
    HEADER_SIZES,
    OPCODES,
    AethKind,
    NakCode,
    Op,
    Packet,
    aeth_kind,
    describe_syndrome,
    find_opcode,
    headers,
    nak_syndrome,
    plain_name,
)

__all__ = ["FIELD_BITS", "header_class", "parse_packet", "spell_packet"]

#: Bits of every field that may be named.
FIELD_BITS = {
    "dest_qp": 24, "psn": 24, "ackreq": 1, "se": 1, "migreq": 1, "pad": 2, "tver": 4, "pkey": 16,
    "fecn": 1, "becn": 1, "resv6": 6, "resv7": 7, "va": 64, "rkey": 32, "length": 32,
    "syndrome": 8, "msn": 24, "immediate": 32, "swap_or_add": 64, "compare": 64, "original": 64,
    "qkey": 32, "source_qp": 24, "placement": 4, "selectivity": 2, "srqn": 24, "ee_context": 24,
}  # fmt: skip
_ALIASES = {"imm": "immediate", "swap": "swap_or_add", "add": "swap_or_add"}
_BOOLEANS = ("ackreq", "se", "migreq", "fecn", "becn")

_NAKS = {plain_name(f"NAK {code.name}"): nak_syndrome(code) for code in NakCode}
_KINDS = {"ack": AethKind.ACK, "rnrnak": AethKind.RNR_NAK}


def header_class(name: str) -> Any:
    """The class of a header by its name in the opcode table."""
    assert name in HEADER_SIZES
    return getattr(headers, name)


def parse_packet(text: str, to_right: bool) -> PacketText:
    """Read a packet; raises ValueError."""
    name, words = _split(text)
    if name.startswith("hex:"):
        found = PacketText(to_right, None, data=parse_data(name))
    else:
        found = _named(name, to_right)
    for word in words:
        if word == "lost":
            found.lost = True
        elif word == "bad-icrc":
            found.corrupt = True
        else:
            _field(found, word)
    return found


def _split(text: str) -> tuple[str, list[str]]:
    """The words of the name, and those of fields and flags."""
    words = split(text)
    flags = (*_BOOLEANS, "lost", "bad-icrc")
    start = next((i for i, w in enumerate(words) if "=" in w or w in flags), len(words))
    if not start:
        raise ValueError("a packet begins with its opcode, as in RDMA WRITE Only psn=+0")
    return " ".join(words[:start]), words[start:]


def _named(name: str, to_right: bool) -> PacketText:
    plain = plain_name(name)
    if plain in _KINDS:
        return PacketText(to_right, Op.ACKNOWLEDGE, kind=_KINDS[plain])
    if plain in _NAKS:
        return PacketText(to_right, Op.ACKNOWLEDGE, {"aeth": {"syndrome": _NAKS[plain]}})
    try:
        return PacketText(to_right, find_opcode(name))
    except ValueError as error:
        also = "ACK, RNR NAK and NAK with its name (NAK Remote Access Error) are Acknowledges"
        raise ValueError(f"{error} {also}") from None


def _field(found: PacketText, word: str) -> None:
    name, equals, value = word.partition("=")
    if found.opcode is None:
        raise ValueError(f"{word!r}: hex: is the whole packet")
    if name == "payload":
        found.payload = parse_data(value)
        return
    if name == "size":
        found.size = parse_int(value, "size", 1 << 16)
        return
    if name == "timer" and found.kind is AethKind.RNR_NAK:
        code = parse_int(value, "timer", 31)
        found.headers["aeth"] = {"syndrome": AethKind.RNR_NAK << 5 | code}
        return
    name = _ALIASES.get(name, name)
    known = _places(found.opcode)
    if name not in known:
        what = OPCODES[found.opcode].name if found.opcode in OPCODES else "a reserved opcode"
        names = ", ".join(known)
        raise ValueError(f"{word!r}: {what} has no such field; there are {names}, payload, size")
    if not equals:
        value = "1"
    found.headers.setdefault(known[name], {})[name] = _value(name, value)


def _places(opcode: int) -> dict[str, str]:
    """Field -> header attribute, for all fields of an opcode."""
    chain = OPCODES[opcode].headers if opcode in OPCODES else ()
    places = {f.name: "bth" for f in fields(BTH) if f.name != "opcode"}
    for header in chain:
        names = (f.name for f in fields(header_class(header)) if f.name in FIELD_BITS)
        places |= dict.fromkeys(names, header.lower())
    return places


def _value(name: str, text: str) -> int | Relative | LocalPlace:
    bits = FIELD_BITS[name]
    if name == "psn" and text.startswith("+"):
        return Relative(parse_int(text[1:], "psn", (1 << bits) - 1))
    if name in ("va", "rkey") and not text[:1].isdigit():
        return parse_place(text)
    return parse_int(text, name, (1 << bits) - 1)


# ---------------------------------------------------------------------- what came


def spell_packet(packet: Packet, first_psn: int, places: dict[int, tuple[str, int]]) -> str:
    """A packet as a script would name it; ``places``: name and address of regions by R_Key."""
    bth, info = packet.bth, packet.info
    name = info.name.removeprefix("RC ")
    words: list[str] = [f"psn=+{bth.psn - first_psn & 0xFFFFFF}"]
    words += [flag for flag in _BOOLEANS if getattr(bth, flag)]
    if packet.aeth is not None and bth.opcode == Op.ACKNOWLEDGE:
        name = describe_syndrome(packet.aeth.syndrome)
        if aeth_kind(packet.aeth.syndrome) is AethKind.RNR_NAK:
            name = f"RNR NAK timer={packet.aeth.syndrome & 31}"
        elif "reserved" in name or "credits" in name:
            name = f"Acknowledge syndrome={packet.aeth.syndrome:#04x}"
    for header in info.headers:
        values = asdict(getattr(packet, header.lower()))
        region = places.get(values.get("rkey", -1))
        for field_name, value in values.items():
            if field_name in ("msn", "length"):
                words.append(f"{field_name}={value}")
            elif field_name == "va" and region:
                words.append(f"va={region[0]}+{value - region[1]}")
            elif field_name == "rkey" and region:
                words.append(f"rkey={region[0]}")
            elif field_name in FIELD_BITS and field_name != "syndrome":
                words.append(f"{field_name}={value:#x}")
    if packet.payload:
        words.append(f"payload={spell_data(bytes(packet.payload))}")
    return f"{name}  {' '.join(words)}"
