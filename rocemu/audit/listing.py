"""A packet as one line, as a tree, as hex, and as a JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rocemu.audit.dissect import Dissected, Icrc
from rocemu.audit.field_table import FIELDS_OF, TITLES
from rocemu.audit.fields import Field, json_value, show, values_of
from rocemu.capture import Network
from rocemu.wire import (
    BTH,
    CmMessage,
    CmRej,
    CmRep,
    CmReq,
    Packet,
    RejReason,
    describe_syndrome,
    opcode_name,
    service_port,
)

__all__ = ["hex_lines", "info", "line", "record", "tree_lines"]

_PROTOCOL = {Network.IPV4: "RoCEv2", Network.IPV6: "RoCEv2", Network.GRH: "RoCEv1"}

#: Attribute of a packet -> its header in short.
_HEADERS: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("rdeth", lambda h: f"EE={h.ee_context:#x}"),
    ("deth", lambda h: f"SrcQP={h.source_qp:#x} Q_Key={h.qkey:#x}"),
    ("xrceth", lambda h: f"SRQ={h.srqn:#x}"),
    ("feth", lambda h: f"PLT={h.placement} SEL={h.selectivity}"),
    ("reth", lambda h: f"VA={h.va:#x} R_Key={h.rkey:#010x} Len={h.length}"),
    (
        "atomiceth",
        lambda h: f"VA={h.va:#x} R_Key={h.rkey:#010x} SwapAdd={h.swap_or_add} Cmp={h.compare}",
    ),
    ("aeth", lambda h: f"{describe_syndrome(h.syndrome)} MSN={h.msn}"),
    ("atomicacketh", lambda h: f"Original={h.original}"),
    ("immdt", lambda h: f"Imm={h.immediate:#x}"),
    ("ieth", lambda h: f"Invalidate={h.rkey:#010x}"),
)
#: Fields that hold others, which the tree shows instead.
_CONTAINERS = frozenset({"infiniband.mad.data", "infiniband.cm.req.ip_cm"})
_FLAGS = (("se", "SE"), ("ackreq", "A"), ("migreq", "M"), ("fecn", "FECN"), ("becn", "BECN"))


def line(packet: Dissected) -> str:
    """Number, time, addresses, protocol, length and what it is, as tshark has them."""
    seconds = packet.relative / 1e9
    name = _PROTOCOL[packet.network] if packet.is_roce else str(packet.network.value)
    ends = f"{packet.source:>15} → {packet.destination:<15}" if packet.source else ""
    length = packet.captured.original_length
    return f"{packet.number:>5} {seconds:>12.6f} {ends} {name} {length} {info(packet)}".rstrip()


def info(packet: Dissected) -> str:
    """What a RoCE packet is, then the verdicts in brackets; empty for other frames."""
    if not packet.is_roce:
        return ""
    words = [_words(packet)] if packet.bth is not None else []
    words += [f"[{verdict}]" for verdict in verdicts(packet)]
    return "  ".join(words)


def _words(packet: Dissected) -> str:
    assert packet.bth is not None
    if packet.placed is not None and packet.placed.cm is not None:
        return cm_words(packet.placed.cm)
    return " ".join([bth_words(packet.bth), *header_words(packet.packet)])


def bth_words(bth: BTH) -> str:
    """``RC SEND Only QP=0x11 PSN=1000 A``."""
    flags = "".join(f" {word}" for name, word in _FLAGS if getattr(bth, name))
    return f"{opcode_name(bth.opcode)} QP={bth.dest_qp:#x} PSN={bth.psn}{flags}"


def header_words(packet: Packet | None) -> list[str]:
    """The extension headers in short, and how much payload there is."""
    words = []
    for name, short in _HEADERS:
        header = getattr(packet, name, None)
        if header is not None:
            words.append(short(header))
    if packet is not None and len(packet.payload):
        words.append(f"({len(packet.payload)} B)")
    return words


def cm_words(message: CmMessage) -> str:
    """``CM REQ port 7174 QPN=0x1e PSN=1000``."""
    words = [f"CM {type(message).ATTRIBUTE.name}"]
    if isinstance(message, CmReq):
        port = service_port(message.service_id)
        words.append(f"service {message.service_id:#x}" if port is None else f"port {port}")
    if isinstance(message, (CmReq, CmRep)):
        words.append(f"QPN={message.local_qpn:#x} PSN={message.starting_psn}")
    if isinstance(message, CmRej):
        known = message.reason in set(RejReason)
        words.append(RejReason(message.reason).name if known else f"reason {message.reason}")
    return " ".join(words)


def verdicts(packet: Dissected) -> list[str]:
    """What is said of a RoCE packet: its ICRC first."""
    said = [f"ICRC {packet.icrc}"]
    if packet.icrc is Icrc.WRONG:
        said = [f"ICRC wrong: {packet.icrc_stored:#010x}, must be {packet.icrc_computed:#010x}"]
    if packet.placed is not None and packet.placed.repeated:
        said.append("again")
    return [*said, *packet.problems]


def tree_lines(packet: Dissected) -> Iterator[str]:
    """Every layer with its fields, in wire order."""
    for title, keys in _groups(packet):
        yield title
        fields = [
            field
            for key in keys
            for field in FIELDS_OF.get(key, ())
            if field.bits or len(FIELDS_OF[key]) == 1  # not the whole when its parts follow
        ]
        starts = {key: packet.layers.get(key, (0, 0))[0] * 8 for key in keys}
        for field in sorted(fields, key=lambda field: (field.get is None, _place(field, starts))):
            if field.name in _CONTAINERS:
                continue
            for value in values_of(field, packet):
                shown = _printable(show(field, value))
                if field.words is not None and isinstance(value, int):
                    shown += f" ({field.words(value)})"
                yield f"    {field.label}: {shown or '(empty)'}"


def _printable(text: str) -> str:
    """Text of a file as a terminal may have it: no control characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _place(field: Field, starts: dict[str, int]) -> int:
    """Where a field is in the frame; what is computed keeps the order of the table."""
    return starts[field.layer] + field.start if field.get is None else 0


def _groups(packet: Dissected) -> Iterator[tuple[str, list[str]]]:
    """Headings, each with the layers under it."""
    title, keys = "", list[str]()
    for key in [*packet.layers, *(["rocemu"] if packet.is_roce else [])]:
        if key == "infiniband":
            continue  # all that follows is
        if key in TITLES:
            if keys:
                yield title, keys
            title, keys = TITLES[key], []
        keys.append(key)
    yield title, keys


def hex_lines(data: bytes) -> Iterator[str]:
    """Sixteen bytes a line: offset, hex, ASCII."""
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:04x}  {row.hex(' '):<47}   {text}"


def record(packet: Dissected) -> dict[str, Any]:
    """The JSON object of a packet; ``fields`` has every field under Wireshark's name."""
    said: dict[str, Any] = {
        "event": "packet",
        "time": packet.captured.timestamp_ns / 1e9,
        "number": packet.number,
        "source": packet.source or None,
        "destination": packet.destination or None,
        "network": packet.network.value,
    }
    if packet.bth is not None:
        said |= {
            "opcode": opcode_name(packet.bth.opcode),
            "qp_num": packet.bth.dest_qp,
            "psn": packet.bth.psn,
        }
    if packet.is_roce:
        said |= {
            "info": info(packet),
            "icrc": packet.icrc,
            "problems": list(packet.problems),
            "conversation": packet.conversation,
            "repeated": packet.placed is not None and packet.placed.repeated,
        }
    fields: dict[str, Any] = {}
    for key in packet.layers:
        for field in FIELDS_OF.get(key, ()):
            if field.bits or field.layer in ("payload", "immdt", "ieth", "cnppad"):
                values = [json_value(field, value) for value in values_of(field, packet)]
                if values:
                    fields[field.name] = values[0] if len(values) == 1 else values
    return said | {"fields": fields}
