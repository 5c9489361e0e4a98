"""The table of fields: frame, IP, UDP, every RoCE header; the connection manager's are appended.

Names are those of Wireshark 4.0; what it has no name for is called in its style
(``infiniband.bth.becn``), and what only we know is under ``rocemu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rocemu.audit.field_table_cm import CM_FIELDS, CM_TITLES
from rocemu.audit.fields import Field, Kind, Value
from rocemu.wire import AethKind, describe_syndrome, opcode_name

if TYPE_CHECKING:
    from rocemu.audit.dissect import Dissected

__all__ = ["ALIASES", "FIELDS", "FIELDS_OF", "TITLES"]

#: Layers that the tree shows -> their heading; a key with ``:`` is a part of the layer before it.
TITLES: dict[str, str] = {
    "frame": "Frame",
    "eth": "Ethernet",
    "ip": "Internet Protocol Version 4",
    "ipv6": "Internet Protocol Version 6",
    "udp": "User Datagram Protocol",
    "infiniband": "InfiniBand",
    "grh": "Global Route Header",
    "bth": "Base Transport Header",
    "rdeth": "RDETH - Reliable Datagram Extended Transport Header",
    "deth": "DETH - Datagram Extended Transport Header",
    "xrceth": "XRCETH - XRC Extended Transport Header",
    "feth": "FETH - FLUSH Extended Transport Header",
    "reth": "RETH - RDMA Extended Transport Header",
    "atomiceth": "AtomicETH - Atomic Extended Transport Header",
    "aeth": "AETH - ACK Extended Transport Header",
    "atomicacketh": "AtomicAckETH - Atomic ACK Extended Transport Header",
    "immdt": "ImmDt - Immediate Data",
    "ieth": "IETH - Invalidate Extended Transport Header",
    "cnppad": "CNP reserved",
    **CM_TITLES,
    "payload": "Payload",
    "icrc": "Invariant CRC",
    "rocemu": "What rocemu says",
}

_Get = Callable[["Dissected"], tuple[Value, ...]]
DEC, HEX, BOOL, SECONDS = Kind.DEC, Kind.HEX, Kind.BOOL, Kind.SECONDS
BYTES, ETHER, IPV4, IPV6, TEXT = Kind.BYTES, Kind.ETHER, Kind.IPV4, Kind.IPV6, Kind.TEXT

# fmt: off
#: layer, prefix of the names -> rows of (name, byte, bit, bits, kind, label)
_ROWS: dict[tuple[str, str], tuple[tuple[str, int, int, int, Kind, str], ...]] = {
    ("eth", "eth"): (
        ("dst", 0, 0, 48, ETHER, "Destination"),
        ("src", 6, 0, 48, ETHER, "Source"),
        ("type", 12, 0, 16, HEX, "Type"),
    ),
    ("ip", "ip"): (
        ("dsfield", 1, 0, 8, HEX, "Differentiated Services Field"),
        ("dsfield.dscp", 1, 0, 6, DEC, "Differentiated Services Codepoint"),
        ("dsfield.ecn", 1, 6, 2, DEC, "Explicit Congestion Notification"),
        ("len", 2, 0, 16, DEC, "Total Length"),
        ("id", 4, 0, 16, HEX, "Identification"),
        ("flags", 6, 0, 3, HEX, "Flags"),
        ("flags.rb", 6, 0, 1, BOOL, "Reserved bit"),
        ("flags.df", 6, 1, 1, BOOL, "Don't fragment"),
        ("flags.mf", 6, 2, 1, BOOL, "More fragments"),
        ("frag_offset", 6, 3, 13, DEC, "Fragment Offset"),
        ("ttl", 8, 0, 8, DEC, "Time to Live"),
        ("proto", 9, 0, 8, DEC, "Protocol"),
        ("checksum", 10, 0, 16, HEX, "Header Checksum"),
        ("src", 12, 0, 32, IPV4, "Source Address"),
        ("dst", 16, 0, 32, IPV4, "Destination Address"),
    ),
    ("ipv6", "ipv6"): (
        ("version", 0, 0, 4, DEC, "Version"),
        ("tclass", 0, 4, 8, HEX, "Traffic Class"),
        ("tclass.dscp", 0, 4, 6, DEC, "Differentiated Services Codepoint"),
        ("tclass.ecn", 1, 2, 2, DEC, "Explicit Congestion Notification"),
        ("flow", 1, 4, 20, HEX, "Flow Label"),
        ("plen", 4, 0, 16, DEC, "Payload Length"),
        ("nxt", 6, 0, 8, DEC, "Next Header"),
        ("hlim", 7, 0, 8, DEC, "Hop Limit"),
        ("src", 8, 0, 128, IPV6, "Source Address"),
        ("dst", 24, 0, 128, IPV6, "Destination Address"),
    ),
    ("udp", "udp"): (
        ("srcport", 0, 0, 16, DEC, "Source Port"),
        ("dstport", 2, 0, 16, DEC, "Destination Port"),
        ("length", 4, 0, 16, DEC, "Length"),
        ("checksum", 6, 0, 16, HEX, "Checksum"),
    ),
    ("grh", "infiniband.grh"): (
        ("ipver", 0, 0, 4, DEC, "IP Version"),
        ("tclass", 0, 4, 8, DEC, "Traffic Class"),
        ("flowlabel", 1, 4, 20, DEC, "Flow Label"),
        ("paylen", 4, 0, 16, DEC, "Payload Length"),
        ("nxthdr", 6, 0, 8, DEC, "Next Header"),
        ("hoplmt", 7, 0, 8, DEC, "Hop Limit"),
        ("sgid", 8, 0, 128, IPV6, "Source GID"),
        ("dgid", 24, 0, 128, IPV6, "Destination GID"),
    ),
    ("bth", "infiniband.bth"): (
        ("opcode", 0, 0, 8, DEC, "Opcode"),
        ("se", 1, 0, 1, BOOL, "Solicited Event"),
        ("m", 1, 1, 1, BOOL, "MigReq"),
        ("padcnt", 1, 2, 2, DEC, "Pad Count"),
        ("tver", 1, 4, 4, DEC, "Header Version"),
        ("p_key", 2, 0, 16, DEC, "Partition Key"),
        ("fecn", 4, 0, 1, BOOL, "FECN"),
        ("becn", 4, 1, 1, BOOL, "BECN"),
        ("reserved6", 4, 2, 6, DEC, "Reserved (6 bits)"),
        ("destqp", 5, 0, 24, HEX, "Destination Queue Pair"),
        ("a", 8, 0, 1, BOOL, "Acknowledge Request"),
        ("reserved7", 8, 1, 7, DEC, "Reserved (7 bits)"),
        ("psn", 9, 0, 24, DEC, "Packet Sequence Number"),
    ),
    ("rdeth", "infiniband.rdeth"): (
        ("reserved8", 0, 0, 8, DEC, "Reserved (8 bits)"),
        ("eecnxt", 1, 0, 24, DEC, "E2E Context"),
    ),
    ("deth", "infiniband.deth"): (
        ("q_key", 0, 0, 32, HEX, "Queue Key"),
        ("reserved8", 4, 0, 8, DEC, "Reserved (8 bits)"),
        ("srcqp", 5, 0, 24, HEX, "Source Queue Pair"),
    ),
    ("xrceth", "infiniband.xrceth"): (
        ("reserved8", 0, 0, 8, DEC, "Reserved (8 bits)"),
        ("srqn", 1, 0, 24, HEX, "XRC SRQ Number"),
    ),
    ("feth", "infiniband.feth"): (
        ("reserved26", 0, 0, 26, DEC, "Reserved (26 bits)"),
        ("sel", 3, 2, 2, DEC, "Selectivity Level"),
        ("plt", 3, 4, 4, DEC, "Placement Type"),
    ),
    (":remote", "infiniband.reth"): (  # of RETH and AtomicETH: Wireshark has one name for both
        ("va", 0, 0, 64, HEX, "Virtual Address"),
        ("r_key", 8, 0, 32, HEX, "Remote Key"),
    ),
    ("reth", "infiniband.reth"): (
        ("dmalen", 12, 0, 32, DEC, "DMA Length"),
    ),
    ("atomiceth", "infiniband.atomiceth"): (
        ("swapdt", 12, 0, 64, DEC, "Swap (Or Add) Data"),
        ("cmpdt", 20, 0, 64, DEC, "Compare Data"),
    ),
    ("aeth", "infiniband.aeth"): (
        ("syndrome", 0, 0, 8, DEC, "Syndrome"),
        ("syndrome.reserved", 0, 0, 1, DEC, "Reserved"),
        ("syndrome.opcode", 0, 1, 2, DEC, "OpCode"),
        ("msn", 1, 0, 24, DEC, "Message Sequence Number"),
    ),
    ("aeth:0", "infiniband.aeth"): (("syndrome.credit_count", 0, 3, 5, DEC, "Credit Count"),),
    ("aeth:1", "infiniband.aeth"): (("syndrome.timer", 0, 3, 5, DEC, "Timer"),),
    ("aeth:2", "infiniband.aeth"): (("syndrome.reserved_value", 0, 3, 5, DEC, "Reserved Value"),),
    ("aeth:3", "infiniband.aeth"): (("syndrome.error_code", 0, 3, 5, DEC, "Error Code"),),
    ("atomicacketh", "infiniband.atomicacketh"): (
        ("origremdt", 0, 0, 64, DEC, "Original Remote Data"),
    ),
}
# fmt: on

#: Headers as wholes: exist, slice, contains.
_INFINIBAND = (
    "grh", "bth", "rdeth", "deth", "xrceth", "feth", "reth", "atomiceth", "aeth", "atomicacketh",
    "immdt", "ieth", "cnppad", "payload", "mad",
)  # fmt: skip
_WHOLE = {
    **{key: key for key in ("frame", "eth", "ip", "ipv6", "udp", "infiniband")},
    **{key: f"infiniband.{key}" for key in _INFINIBAND},
}

_WORDS: dict[str, Callable[[int], str]] = {
    "infiniband.bth.opcode": opcode_name,
    "infiniband.aeth.syndrome": describe_syndrome,
    "infiniband.aeth.syndrome.opcode": lambda kind: (
        "reserved" if kind == 2 else AethKind(kind).name.replace("_", " ")
    ),
}


def _one(value: Value | None) -> tuple[Value, ...]:
    return () if value is None else (value,)


def _text(value: str | None) -> tuple[Value, ...]:
    return (value,) if value else ()


def _nibble(packet: Dissected, shift: int, *layers: str) -> tuple[int, ...]:
    """Half of the first byte of the first layer that there is; Wireshark's ``ip.version`` is of
    IPv6 too."""
    for layer in layers:
        if layer in packet.layers:
            return (packet.captured.data[packet.layers[layer][0]] >> shift & 15,)
    return ()


#: name, layer, kind, label, getter
_COMPUTED: tuple[tuple[str, str, Kind, str, _Get], ...] = (
    ("frame.number", "frame", DEC, "Frame Number", lambda p: (p.number,)),
    ("frame.time_epoch", "frame", SECONDS, "Epoch Time", lambda p: (p.captured.timestamp_ns,)),
    ("frame.time_relative", "frame", SECONDS, "Time since first frame", lambda p: (p.relative,)),
    ("frame.time_delta", "frame", SECONDS, "Time since previous frame", lambda p: (p.delta,)),
    ("frame.len", "frame", DEC, "Frame Length", lambda p: (p.captured.original_length,)),
    ("frame.cap_len", "frame", DEC, "Capture Length", lambda p: (len(p.captured.data),)),
    ("frame.interface_name", "frame", TEXT, "Interface name",
     lambda p: _text(p.captured.interface.name)),
    ("frame.interface_description", "frame", TEXT, "Interface description",
     lambda p: _text(p.captured.interface.description)),
    ("frame.packet_flags_direction", "frame", HEX, "Direction",
     lambda p: _one(int(p.captured.direction) or None)),
    ("frame.comment", "frame", TEXT, "Comment", lambda p: p.captured.comments),
    ("ip.version", "ip", DEC, "Version", lambda p: _nibble(p, 4, "ip", "ipv6")),
    ("ip.hdr_len", "ip", DEC, "Header Length",
     lambda p: tuple(words * 4 for words in _nibble(p, 0, "ip"))),
    ("rocemu.icrc", "rocemu", TEXT, "ICRC", lambda p: _text(p.icrc and p.icrc.value)),
    ("rocemu.icrc.computed", "rocemu", HEX, "ICRC as it must be", lambda p: _one(p.icrc_computed)),
    ("rocemu.problem", "rocemu", TEXT, "Problem", lambda p: p.problems),
    ("rocemu.retry", "rocemu", BOOL, "Sent again",
     lambda p: (int(p.placed.repeated),) if p.placed else ()),
    ("rocemu.conversation", "rocemu", DEC, "Conversation", lambda p: _one(p.conversation)),
)  # fmt: skip

#: A name for several fields -> those.
ALIASES: dict[str, tuple[str, ...]] = {
    "eth.addr": ("eth.dst", "eth.src"),
    "ip.addr": ("ip.src", "ip.dst"),
    "ipv6.addr": ("ipv6.src", "ipv6.dst"),
    "udp.port": ("udp.srcport", "udp.dstport"),
}


def _table() -> Iterable[Field]:
    for layer, name in _WHOLE.items():
        yield Field(name, layer, 0, 0, BYTES, TITLES[layer])
    for name, layer, kind, label, get in _COMPUTED:
        yield Field(name, layer, 0, 32, kind, label, None, get)
    for (layer, prefix), rows in _ROWS.items():
        for suffix, byte, bit, bits, kind, label in rows:
            name = f"{prefix}.{suffix}"
            yield Field(name, layer, byte * 8 + bit, bits, kind, label, _WORDS.get(name))
    yield Field("ip.options", "ip:options", 0, 0, BYTES, "Options")
    yield Field("infiniband.invariant.crc", "icrc", 0, 32, HEX, "Invariant CRC")
    yield from CM_FIELDS


#: Every field by its name.
FIELDS: dict[str, Field] = {field.name: field for field in _table()}
#: The fields of a layer, in the order of the tree.
FIELDS_OF: dict[str, list[Field]] = {}
for _field in FIELDS.values():
    FIELDS_OF.setdefault(_field.layer, []).append(_field)
