"""RoCEv2 for Scapy: the BTH on UDP port 4791 and the headers that its opcode asks for.

Which headers follow a BTH is read from :data:`rocemu.wire.OPCODES`, the one opcode table; fields
have the names of :mod:`rocemu.wire`'s headers.  A field left None is computed on build: opcode,
PadCnt, pad bytes, ICRC and the RETH's length.  A field that was set, or dissected, stays as it is
(``del pkt[BTH].icrc`` before sending a packet that was changed).
"""

from typing import Any

from scapy.config import conf
from scapy.error import warning
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    FlagsField,
    IntField,
    RawVal,
    ThreeBytesField,
    X3BytesField,
    XBitField,
    XByteField,
    XIntField,
    XLongField,
    XShortField,
    XStrFixedLenField,
)
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, bind_top_down

from layers.fields import IcrcField, PaddingField
from rocemu.wire import (
    HEADER_SIZES,
    ICRC_SIZE,
    OPCODES,
    ROCE_PORT,
    Op,
    PayloadRule,
    Position,
    ack_syndrome,
    describe_syndrome,
    icrc_of_ip,
)

__all__ = [
    "AETH",
    "BTH",
    "DETH",
    "FETH",
    "IETH",
    "RDETH",
    "RETH",
    "XRCETH",
    "AtomicAckETH",
    "AtomicETH",
    "CNPPad",
    "ImmDt",
]


class _Header(Packet):
    """A header of a RoCEv2 packet: the opcode's row in the table decides what follows it."""

    def guess_payload_class(self, payload: bytes) -> Any:
        layer, depth = self, 0
        while layer is not None and not isinstance(layer, BTH):
            layer, depth = layer.underlayer, depth + 1
        info = OPCODES.get(layer.opcode) if layer else None
        if info is None or depth >= len(info.headers):
            return super().guess_payload_class(payload)
        name = info.headers[depth]
        return EXTENSIONS[name] if len(payload) >= HEADER_SIZES[name] else conf.raw_layer


class BTH(_Header):
    """Base Transport Header ([IBTA] 9.2), and what ends the datagram: pad bytes and ICRC.

    The ICRC ([IBTA] Annex A17.3.3) is computed over the IP and UDP headers that really lie below,
    whatever their ID, flags or lengths; without them it is 0.

    An opcode left None becomes the table's first one-packet opcode with the stacked headers, one
    that carries no payload if there is none: ``BTH()/RETH()/Raw(b"x")`` is an RC RDMA WRITE Only,
    ``BTH()/RETH()`` a READ Request, ``BTH()/AETH()`` an Acknowledge, ``BTH()/AtomicETH()`` a
    CmpSwap (set FetchAdd).  Headers that no opcode has are taken for the payload of a SEND Only.
    """

    SIZE = 12
    name = "BTH"
    fields_desc = [
        ByteEnumField("opcode", None, {info.opcode: info.name for info in OPCODES.values()}),
        BitField("se", 0, 1),
        BitField("migreq", 0, 1),
        BitField("pad", None, 2),
        BitField("tver", 0, 4),
        XShortField("pkey", 0xFFFF),
        BitField("fecn", 0, 1),
        BitField("becn", 0, 1),
        BitField("resv6", 0, 6),
        X3BytesField("dest_qp", 0),
        BitField("ackreq", 0, 1),
        BitField("resv7", 0, 7),
        ThreeBytesField("psn", 0),
        PaddingField("padding", None),
        IcrcField("icrc", None),
    ]

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kargs: Any) -> Any:
        """Bytes too short for BTH and ICRC are no RoCEv2 packet ([IBTA] 9.6)."""
        return conf.raw_layer if _pkt and len(_pkt) < cls.SIZE + ICRC_SIZE else cls

    def post_dissect(self, s: bytes) -> bytes:
        self.raw_packet_cache = None  # pad and ICRC are not where the fields are: always rebuild
        return s

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        opcode = self._opcode_of_stack(pay) if self.opcode is None else p[0]
        pad = -len(pay) & 3 if self.pad is None else self.pad
        padding = bytes(pad) if self.padding is None else bytes(self.padding)
        flags = p[1] & 0xCF | pad << 4
        packet = bytes((opcode, flags)) + p[2:] + pay + padding
        icrc: int | RawVal | None = self.icrc
        if icrc is None:
            return packet + self._compute_icrc(packet)
        if isinstance(icrc, RawVal):
            return packet + bytes(icrc)
        return packet + icrc.to_bytes(ICRC_SIZE, "big")

    def _opcode_of_stack(self, pay: bytes) -> int:
        names, layer = [], self.payload
        while type(layer) in EXTENSIONS.values():
            names.append(type(layer).__name__)
            layer = layer.payload
        bare = len(pay) == sum(HEADER_SIZES[name] for name in names)
        rows = [
            info
            for info in OPCODES.values()
            if info.position is Position.ONLY and info.headers == tuple(names)
        ]
        if not rows:
            return Op.SEND_ONLY
        return min(rows, key=lambda info: (info.payload is PayloadRule.NONE) != bare).opcode

    def _compute_icrc(self, packet: bytes) -> bytes:
        udp = self.underlayer
        network = udp.underlayer if isinstance(udp, UDP) else None
        if not isinstance(network, (IP, IPv6)):
            warning("No IP and UDP headers below the BTH: the ICRC is left 0.")
            return bytes(ICRC_SIZE)
        # The headers as they will leave, with lengths that count the ICRC.
        datagram = packet + bytes(ICRC_SIZE)
        for layer in (udp, network):
            header = layer.self_build()
            datagram = (
                layer.post_build(header, datagram)
                if layer.raw_packet_cache is None
                else header + datagram
            )
        return icrc_of_ip(datagram[:-ICRC_SIZE]).to_bytes(ICRC_SIZE, "little")

    def mysummary(self) -> str:
        return str(self.sprintf("%BTH.opcode% QP %BTH.dest_qp% PSN %BTH.psn%"))


class RETH(_Header):
    """RDMA Extended Transport Header ([IBTA] 9.3.3).

    ``length`` (DMA length, bytes of the whole message) left None is the length of the payload; set
    it on READ Requests and on the First packet of a WRITE.
    """

    name = "RETH"
    fields_desc = [XLongField("va", 0), XIntField("rkey", 0), IntField("length", None)]

    def post_build(self, p: bytes, pay: bytes) -> bytes:
        if self.length is None:
            immediate = HEADER_SIZES["ImmDt"] if isinstance(self.payload, ImmDt) else 0
            p = p[:12] + (len(pay) - immediate).to_bytes(4, "big")
        return p + pay


class AETH(_Header):
    """ACK Extended Transport Header ([IBTA] 9.3.5); the syndrome's codes are in [IBTA] 9.7.5.2.

    ``syndrome`` takes and shows names: ``ACK``, ``ACK credits 12``, ``RNR NAK 1.28 ms``,
    ``NAK Remote Access Error``.
    """

    name = "AETH"
    fields_desc = [
        ByteEnumField(
            "syndrome", ack_syndrome(), {code: describe_syndrome(code) for code in range(256)}
        ),
        ThreeBytesField("msn", 0),
    ]

    def mysummary(self) -> tuple[str, list[Any]]:
        return self.sprintf("%AETH.syndrome% MSN %AETH.msn%"), [BTH]


class DETH(_Header):
    """Datagram Extended Transport Header ([IBTA] 9.3.2)."""

    name = "DETH"
    fields_desc = [XIntField("qkey", 0), XByteField("reserved", 0), X3BytesField("source_qp", 0)]


class ImmDt(_Header):
    """Immediate data, handed to the receiver as it is ([IBTA] 9.3.6)."""

    name = "ImmDt"
    fields_desc = [XIntField("immediate", 0)]


class IETH(_Header):
    """The R_Key that a SEND with Invalidate takes away ([IBTA] 9.3.7)."""

    name = "IETH"
    fields_desc = [XIntField("rkey", 0)]


class AtomicETH(_Header):
    """Atomic Extended Transport Header ([IBTA] 9.3.4); FetchAdd's addend is in ``swap_or_add``."""

    name = "AtomicETH"
    fields_desc = [
        XLongField("va", 0),
        XIntField("rkey", 0),
        XLongField("swap_or_add", 0),
        XLongField("compare", 0),
    ]


class AtomicAckETH(_Header):
    """The value that memory held before an atomic ([IBTA] 9.3.5.3)."""

    name = "AtomicAckETH"
    fields_desc = [XLongField("original_data", 0)]  # a Scapy packet's own `original` is its bytes


class XRCETH(_Header):
    """XRC Extended Transport Header: the shared receive queue ([IBTA] Annex A14)."""

    name = "XRCETH"
    fields_desc = [XByteField("reserved", 0), X3BytesField("srqn", 0)]


class RDETH(_Header):
    """Reliable Datagram Extended Transport Header ([IBTA] 9.3.1)."""

    name = "RDETH"
    fields_desc = [XByteField("reserved", 0), X3BytesField("ee_context", 0)]


class FETH(_Header):
    """FLUSH Extended Transport Header ([IBTA] Annex A19)."""

    name = "FETH"
    fields_desc = [
        XBitField("reserved", 0, 26),
        BitEnumField("selectivity", 0, 2, {0: "range", 1: "whole region"}),
        FlagsField("placement", 0, 4, ["global_visibility", "persistence", "resv2", "resv3"]),
    ]


class CNPPad(_Header):
    """The 16 reserved bytes of a congestion notification packet ([IBTA] Annex A17).

    ``BTH(dest_qp=...)/CNPPad()`` is a CNP, with BECN set.
    """

    name = "CNPPad"
    fields_desc = [XStrFixedLenField("reserved", bytes(16), 16)]


EXTENSIONS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        RDETH,
        DETH,
        XRCETH,
        FETH,
        RETH,
        AtomicETH,
        AETH,
        AtomicAckETH,
        ImmDt,
        IETH,
        CNPPad,
    )
}

# Scapy takes the first binding that fits.  At the head of the list ours is the one for port 4791,
# whether scapy.contrib.roce is loaded before or after, and whatever the source port (Scapy's
# default, 53, would make it DNS).  Convention puts RoCEv2's source ports at 0xC000 and above.
UDP.payload_guess = [({"dport": ROCE_PORT}, BTH), *UDP.payload_guess]
bind_top_down(UDP, BTH, sport=0xC000, dport=ROCE_PORT)
bind_top_down(BTH, CNPPad, becn=1)
