"""Flip any bit that the ICRC covers, and the audit finds it; flip a masked one, and all is well."""

import struct

import pytest

from rocemu.capture import CapturedPacket, Interface, PcapngWriter, build_frame, locate
from rocemu.wire import AETH, BTH, RETH, AtomicETH, Flow, Op, Packet, build, seal
from tests.audit.made import grh_frame
from tests.audit.talk import audit_file
from tests.wire.examples import CONNECTX_CNP

V4 = Flow("10.0.0.1", "10.0.0.2", 0xC123, tos=2)
V6 = Flow("fd00::1", "fd00::2", 0xC123)
WRITE = build(Packet(BTH(Op.RDMA_WRITE_ONLY, 0x11, 7), b"hello", reth=RETH(0x1000, 0x123456, 5)))
ACK = build(Packet(BTH(Op.ACKNOWLEDGE, 0x12, 7), aeth=AETH(0x1F, 1)))
ATOMIC = build(Packet(BTH(Op.FETCH_ADD, 0x11, 8), atomiceth=AtomicETH(0x1000, 0x123456, 1)))
ETHERNET_V4 = bytes.fromhex("020000000001020000000002 0800")
FRAMES = {
    "ipv4-write": build_frame(V4, 0x1234, seal(WRITE, V4, 0x1234)),
    "ipv4-cnp": ETHERNET_V4 + CONNECTX_CNP,
    "ipv6-ack": build_frame(V6, 0, seal(ACK, V6)),
    "ipv6-atomic": build_frame(V6, 0, seal(ATOMIC, V6)),
    "rocev1-write": grh_frame(WRITE),
}
#: Masked bits, as (byte from the network header on, mask): the specification's list.
_BTH4 = {"IPv4": 28 + 4, "IPv6": 48 + 4, "RoCEv1": 40 + 4}
MASKED = {
    "IPv4": {1: 0xFF, 8: 0xFF, 10: 0xFF, 11: 0xFF, 26: 0xFF, 27: 0xFF},
    "IPv6": {0: 0x0F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 7: 0xFF, 46: 0xFF, 47: 0xFF},
    "RoCEv1": {0: 0x0F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 7: 0xFF},
}


@pytest.mark.parametrize("name", FRAMES)
def test_every_bit(name: str, tmp_path):
    frame = FRAMES[name]
    found = locate(1, frame)
    network = str(found.network)
    masked = {**MASKED[network], _BTH4[network]: 0xFF}
    path = tmp_path / "flips.pcapng"
    flips = [(at, bit) for at in range(len(frame) - found.network_at) for bit in range(8)]
    with path.open("wb") as file:
        writer = PcapngWriter(file)
        for at, bit in [(0, None), *flips]:
            data = bytearray(frame)
            if bit is not None:
                data[found.network_at + at] ^= 1 << bit
            writer.write(CapturedPacket(0, bytes(data), len(data), Interface()))
    findings, _ = audit_file(path)
    by_itself = {
        finding.packets[0]: finding.severity
        for finding in findings
        if not finding.where and finding.severity == "error" and finding.code != "cnp-format"
    }
    assert 1 not in by_itself
    for number, (at, bit) in enumerate(flips, 2):
        covered = not masked.get(at, 0) & 1 << bit
        assert (number in by_itself) is covered, f"byte {at} bit {bit}"


def test_the_reader_of_the_icrc_is_not_fooled_by_padding_of_the_link():
    """A short frame is filled up to 60 bytes: its ICRC is where IP says that the packet ends."""
    packet = build(Packet(BTH(Op.SEND_ONLY, 0x11, 7)))
    frame = build_frame(V4, 1, seal(packet, V4, 1))
    padded = frame.ljust(60, b"\0")
    assert struct.unpack_from(">H", padded, 16)[0] + 14 < 60
    assert audit_frames(padded) == set()
    broken = bytearray(padded)
    broken[23] ^= 1  # protocol
    assert audit_frames(bytes(broken)) == {"header-damaged"}


def audit_frames(*frames: bytes) -> set[str]:
    import io

    file = io.BytesIO()
    writer = PcapngWriter(file)
    for frame in frames:
        writer.write(CapturedPacket(0, frame, len(frame), Interface()))
    file.seek(0)
    return {finding.code for finding in audit_file(file)[0] if finding.code != "one-sided"}
