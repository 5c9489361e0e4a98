"""Packets for tests: byte vectors from outside, the kernel's captures, hypothesis strategies."""

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

from rocemu import wire
from rocemu.wire import OPCODES, Flow, OpcodeInfo, Packet, PayloadRule

SOFT_ROCE = Path(__file__).parents[2] / "pcaps" / "soft-roce"

#: IPv4 header to ICRC; 10.0.0.1 <-> 10.0.0.2, IP ID 0, DF.  Checked with two CRC implementations
#: that are not ours.
GOLDEN = {
    name: bytes.fromhex(text)
    for name, text in {
        "write": "4500004400004000401126a70a0000010a000002c12312b7003000000a30ffff00000011800003e8"
        "00007f0000001000001234560000000568656c6c6f0000006cf39ef5",
        "ack": "4500003000004000401126bb0a0000020a000001c45612b7001c00001100ffff00000012000003e8"
        "1f00000184607287",
        "nak": "4500003000004000401126bb0a0000020a000001c45612b7001c00001100ffff00000012000003e8"
        "6200000053282069",
        "read": "4500003c00004000401126af0a0000010a000002c12312b7002800000c00ffff00000011800003e9"
        "00007f00000010000012345600001000ca036557",
        "fetch_add": "4500004800004000401126a30a0000010a000002c12312b7003400001400ffff00000011"
        "800003ea00007f00000010080012345600000000000000010000000000000000f9ef56a1",
        "atomic_ack": "4500003800004000401126b30a0000020a000001c45612b7002400001200ffff00000012"
        "000003ea1f000002000000000000002945264cbe",
    }.items()
}

#: A congestion notification packet of a ConnectX-4 Lx, IPv4 header to ICRC: IP ID 0x718c, DF.
CONNECTX_CNP = bytes.fromhex(
    "45c2003c718c4000401191610a0011010a001201000012b700280000"
    "8100ffff40000118000000000000000000000000000000000000000082fd002a"
)


def split_ip(data: bytes) -> tuple[Flow, int | None, bytes]:
    """Flow, IP ID (None on IPv6) and UDP payload of an IP packet without options."""
    if data[0] >> 4 == 4:
        source, destination = (".".join(map(str, data[i : i + 4])) for i in (12, 16))
        udp, ip_id = 20, int.from_bytes(data[4:6], "big")
    else:
        source, destination = (data[i : i + 16].hex(":", 2) for i in (8, 24))
        udp, ip_id = 40, None
    ports = struct.unpack_from(">HHH", data, udp)
    return Flow(source, destination, ports[0], ports[1]), ip_id, data[udp + 8 : udp + ports[2]]


def read_pcap(name: str) -> Iterator[bytes]:
    """RoCEv2 packets, from the IP header on, of an Ethernet pcap file of the kernel's."""
    data = (SOFT_ROCE / name).read_bytes()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    offset = 24
    while offset < len(data):
        caught, whole = struct.unpack_from(order + "II", data, offset + 8)
        assert caught == whole, "the capture is cut short"
        packet = data[offset + 16 + 14 : offset + 16 + caught]
        udp, protocol = (20, packet[9]) if packet[0] >> 4 == 4 else (40, packet[6])
        if protocol == 17 and packet[udp + 2 : udp + 4] == b"\x12\xb7":
            yield packet
        offset += 16 + caught


KERNEL_FILES = sorted(path.name for path in SOFT_ROCE.glob("*.pcap"))

_HEADERS = {
    "RETH": wire.RETH,
    "AETH": wire.AETH,
    "DETH": wire.DETH,
    "ImmDt": wire.ImmDt,
    "IETH": wire.IETH,
    "AtomicETH": wire.AtomicETH,
    "AtomicAckETH": wire.AtomicAckETH,
    "XRCETH": wire.XRCETH,
    "RDETH": wire.RDETH,
    "FETH": wire.FETH,
    "CNPPad": wire.CNPPad,
}
# Bits of the fields, as the reference's tables have them; reserved bits are not fields.
_BITS = {
    "va": 64,
    "rkey": 32,
    "length": 32,
    "syndrome": 8,
    "msn": 24,
    "qkey": 32,
    "source_qp": 24,
    "immediate": 32,
    "swap_or_add": 64,
    "compare": 64,
    "original": 64,
    "srqn": 24,
    "ee_context": 24,
    "placement": 4,
    "selectivity": 2,
}


def bits(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << count) - 1)


def header(name: str) -> st.SearchStrategy[object]:
    """Any value of the header with that name."""
    cls = _HEADERS[name]
    fields = {
        field.name: st.binary(min_size=16, max_size=16)
        if field.name == "reserved"
        else bits(_BITS[field.name])
        for field in dataclasses.fields(cls)
    }
    return st.builds(cls, **fields)


@st.composite
def packets(draw: st.DrawFn, info: OpcodeInfo | None = None) -> Packet:
    """Any packet of an opcode (of any opcode by default), pad right, TVer 0."""
    info = info or draw(st.sampled_from(sorted(OPCODES.values(), key=lambda row: row.opcode)))
    payload = b"" if info.payload is PayloadRule.NONE else draw(st.binary(max_size=40))
    bth = wire.BTH(
        info.opcode,
        draw(bits(24)),
        draw(bits(24)),
        ackreq=draw(st.booleans()),
        se=draw(st.booleans()),
        migreq=draw(st.booleans()),
        pad=-len(payload) & 3,
        pkey=draw(bits(16)),
        fecn=draw(st.booleans()),
        becn=draw(st.booleans()),
        resv6=draw(bits(6)),
        resv7=draw(bits(7)),
    )
    headers = {name.lower(): draw(header(name)) for name in info.headers}
    return Packet(bth, payload, **headers)


def flows() -> st.SearchStrategy[Flow]:
    """Flows over IPv4 and IPv6."""
    return st.one_of(
        st.builds(
            Flow,
            st.ip_addresses(v=version).map(str),
            st.ip_addresses(v=version).map(str),
            bits(16),
            tos=bits(8),
            ttl=st.integers(1, 255),
        )
        for version in (4, 6)
    )
