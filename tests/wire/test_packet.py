"""Parsing and building: vectors from outside, round trips, and any bytes at all."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocemu import wire
from rocemu.wire import BTH, OPCODES, OpcodeInfo, Packet, WireError, build, parse
from tests.wire.examples import CONNECTX_CNP, GOLDEN, packets, split_ip


def payload_of(name: str) -> bytes:
    return split_ip(GOLDEN[name])[2][:-4]


def test_golden_write():
    packet = parse(payload_of("write"))
    assert packet.bth == BTH(0x0A, 0x11, 1000, ackreq=True, pad=3)
    assert packet.reth == wire.RETH(0x7F0000001000, 0x123456, 5)
    assert bytes(packet.payload) == b"hello"
    assert packet.info.name == "RC RDMA WRITE Only"


@pytest.mark.parametrize(("name", "syndrome", "msn"), [("ack", 0x1F, 1), ("nak", 0x62, 0)])
def test_golden_ack_and_nak(name: str, syndrome: int, msn: int):
    packet = parse(payload_of(name))
    assert packet.bth == BTH(0x11, 0x12, 1000)
    assert packet.aeth == wire.AETH(syndrome, msn)
    assert not packet.payload


def test_golden_read_and_atomics():
    assert parse(payload_of("read")).reth == wire.RETH(0x7F0000001000, 0x123456, 4096)
    assert parse(payload_of("fetch_add")).atomiceth == wire.AtomicETH(0x7F0000001008, 0x123456, 1)
    answer = parse(payload_of("atomic_ack"))
    assert (answer.aeth, answer.atomicacketh) == (wire.AETH(0x1F, 2), wire.AtomicAckETH(41))


def test_cnp_of_a_connectx():
    packet = parse(split_ip(CONNECTX_CNP)[2][:-4])
    assert packet.bth == BTH(0x81, 0x118, 0, becn=True)
    assert packet.cnppad == wire.CNPPad(bytes(16))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_packets_are_built_again(name: str):
    assert build(parse(payload_of(name))) == payload_of(name)


# Every field of one header set to something of its own, by the layouts of the specification.
@pytest.mark.parametrize(
    ("header", "data"),
    [
        (wire.RETH(0x0102030405060708, 0x090A0B0C, 0x0D0E0F10), "0102030405060708090a0b0c0d0e0f10"),
        (wire.AETH(0x62, 0x010203), "62010203"),
        (wire.DETH(0x80010000, 0x010203), "8001000000010203"),
        (wire.ImmDt(0x01020304), "01020304"),
        (wire.IETH(0x01020304), "01020304"),
        (
            wire.AtomicETH(1, 2, swap_or_add=3, compare=4),
            "0000000000000001000000020000000000000003" + "0000000000000004",
        ),
        (wire.AtomicAckETH(0x0102030405060708), "0102030405060708"),
        (wire.XRCETH(0x010203), "00010203"),
        (wire.RDETH(0x010203), "00010203"),
        (wire.FETH(placement=3, selectivity=1), "00000013"),
        (
            BTH(4, 0x010203, 0x040506, True, True, True, 2, 5, 0x8001, True, True, 0x3F, 0x7F),
            "04e58001ff010203ff040506",
        ),
        (BTH(4, 1, 2, se=True), "0480ffff0000000100000002"),
        (BTH(4, 1, 2, migreq=True), "0440ffff0000000100000002"),
        (BTH(4, 1, 2, fecn=True), "0400ffff8000000100000002"),
        (BTH(4, 1, 2, becn=True), "0400ffff4000000100000002"),
        (BTH(4, 1, 2, ackreq=True), "0400ffff0000000180000002"),
    ],
)
def test_header_layouts(header: wire.BTH, data: str):
    assert header.pack() == bytes.fromhex(data)
    assert type(header).unpack(b"\xaa" + bytes.fromhex(data), 1) == header


@pytest.mark.parametrize(
    ("cls", "data", "value"),
    [
        (wire.DETH, "00000001ff000002", wire.DETH(1, 2)),
        (wire.XRCETH, "ff000002", wire.XRCETH(2)),
        (wire.RDETH, "ff000002", wire.RDETH(2)),
        (wire.FETH, "ffffffc1", wire.FETH(1, 0)),
    ],
)
def test_reserved_bits_are_ignored(cls: type[wire.DETH], data: str, value: object):
    assert cls.unpack(bytes.fromhex(data)) == value


@pytest.mark.parametrize("size", range(10))
def test_pad_fills_to_four_and_is_not_payload(size: int):
    data = build(Packet(BTH(0x04, 1, 2), b"\xee" * size))
    assert len(data) % 4 == 0
    assert data[1] >> 4 & 3 == (4 - size % 4) % 4
    assert data[12:] == b"\xee" * size + bytes((4 - size % 4) % 4)
    assert bytes(parse(data).payload) == b"\xee" * size


@pytest.mark.parametrize("info", OPCODES.values(), ids=lambda info: info.name)
@settings(max_examples=10)
@given(data=st.data())
def test_parse_undoes_build(info: OpcodeInfo, data: st.DataObject):
    packet = data.draw(packets(info))
    assert parse(build(packet)) == packet


@given(st.binary(max_size=80))
def test_any_bytes_are_a_packet_or_a_wire_error(data: bytes):
    with contextlib.suppress(WireError):
        packet = parse(data)
        rest = len(data) - 12 - packet.info.header_bytes
        assert len(packet.payload) == rest - packet.bth.pad >= 0


@pytest.mark.parametrize("pad", range(4))
def test_every_opcode_at_every_length(pad: int):
    """Parses exactly when the opcode is defined, headers and pad have room, and PadCnt is right."""
    for opcode in range(256):
        info = OPCODES.get(opcode)
        for size in range(60):
            data = (struct.pack(">BB", opcode, pad << 4) + bytes(58))[:size]
            payload = size - 12 - (info.header_bytes if info else 0) - pad
            if size < 12:
                expected: int | str = "short"
            elif (payload + pad) % 4:
                expected = "pad"
            elif info is None:
                expected = "opcode"
            else:
                expected = payload if payload >= 0 else "short"
            try:
                found: int | str = len(parse(data).payload)
            except WireError as error:
                found = error.reason
            assert found == expected, (opcode, size)


def test_only_transport_version_zero():
    for version in range(1, 16):
        with pytest.raises(WireError, match=f"version {version}") as caught:
            parse(BTH(4, 1, 2, tver=version).pack())
        assert caught.value.reason == "tver"


def test_payload_is_a_view_of_the_datagram():
    data = bytearray(payload_of("write"))
    packet = parse(data)
    data[28:33] = b"HELLO"
    assert bytes(packet.payload) == b"HELLO"


def test_build_names_the_header_that_is_missing():
    with pytest.raises(WireError, match="RC RDMA WRITE Only needs reth") as caught:
        build(Packet(BTH(0x0A, 1, 2), b"x"))
    assert caught.value.reason == "headers"


def test_reserved_opcodes_are_not_built():
    with pytest.raises(WireError, match="reserved opcode 0x18") as caught:
        build(Packet(BTH(0x18, 1, 2)))
    assert caught.value.reason == "opcode"
