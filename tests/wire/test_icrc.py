"""The ICRC: vectors from outside, the specification step by step, what may change in flight."""

import contextlib
import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocemu.wire import (
    BTH,
    Flow,
    IcrcMatch,
    Packet,
    WireError,
    build,
    icrc_of,
    icrc_of_ip,
    masked_stream,
    pack_address,
    seal,
    verify,
)
from tests.wire.examples import CONNECTX_CNP, GOLDEN, bits, flows, packets, split_ip

V4 = Flow("10.0.0.1", "10.0.0.2", 0xC123)
V6 = Flow("fd00::1", "fd00::2", 0xC123)


def naive_icrc(packet: bytes, flow: Flow, ip_id: int = 0, flags: int = 0x4000) -> bytes:
    """The specification's text, step by step, with zlib."""
    length = 8 + len(packet) + 4
    source, destination = pack_address(flow.source), pack_address(flow.destination)
    if flow.ipv6:
        stream = bytes.fromhex("6fffffff") + struct.pack(">HBB", length, 17, 0xFF)
    else:
        stream = struct.pack(">BBHHHBBH", 0x45, 0xFF, 20 + length, ip_id, flags, 0xFF, 17, 0xFFFF)
    stream = bytes([0xFF] * 8) + stream + source + destination
    stream += struct.pack(">HHHH", flow.source_port, flow.destination_port, length, 0xFFFF)
    masked = bytearray(packet)
    masked[4] = 0xFF
    return struct.pack("<I", zlib.crc32(stream + bytes(masked)))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors(name: str):
    flow, ip_id, datagram = split_ip(GOLDEN[name])
    assert seal(datagram[:-4], flow) == datagram
    assert verify(datagram, flow, ip_id) == (IcrcMatch.EXACT, 0)
    assert verify(datagram, flow) == (IcrcMatch.KNOWN_ID, 0)
    assert icrc_of_ip(GOLDEN[name][:-4]).to_bytes(4, "little") == GOLDEN[name][-4:]


def test_cnp_of_a_connectx():
    flow, ip_id, datagram = split_ip(CONNECTX_CNP)
    assert ip_id == 0x718C
    assert masked_stream(datagram[:-4], flow, ip_id) == bytes.fromhex(
        "ffffffffffffffff"
        "45ff003c718c4000ff11ffff0a0011010a001201000012b70028ffff"
        "8100ffffff00011800000000000000000000000000000000" + "00000000"
    )
    assert icrc_of(datagram[:-4], flow, ip_id) == 0x2A00FD82
    assert verify(datagram, flow, ip_id) == (IcrcMatch.EXACT, 0x718C)
    assert verify(datagram, flow) == (IcrcMatch.SOLVED, 0x718C)
    assert icrc_of_ip(CONNECTX_CNP[:-4]) == 0x2A00FD82


@given(packets(), flows(), bits(16))
def test_any_packet_as_the_specification_says(packet: Packet, flow: Flow, ip_id: int):
    data = build(packet)
    assert seal(data, flow, ip_id)[-4:] == naive_icrc(data, flow, ip_id)
    assert zlib.crc32(masked_stream(data, flow, ip_id)) == icrc_of(data, flow, ip_id)


@given(packets(), flows(), bits(16))
def test_the_ip_id_is_found(packet: Packet, flow: Flow, ip_id: int):
    data = build(packet)
    sealed = data + naive_icrc(data, flow, ip_id)
    assert verify(memoryview(sealed), flow, ip_id) == (IcrcMatch.EXACT, ip_id)
    if flow.ipv6:
        assert verify(sealed, flow) == (IcrcMatch.EXACT, 0)
    else:
        match = IcrcMatch.KNOWN_ID if ip_id < 64 else IcrcMatch.SOLVED
        assert verify(sealed, flow) == (match, ip_id)


@pytest.mark.parametrize("size", range(10))
@pytest.mark.parametrize("flow", [V4, V6], ids=["ipv4", "ipv6"])
def test_pad_is_covered(size: int, flow: Flow):
    data = build(Packet(BTH(0x04, 0x11, 7), b"\x55" * size))
    sealed = seal(data, flow)
    assert len(sealed) == 12 + (size + 3) // 4 * 4 + 4
    assert sealed[-4:] == naive_icrc(data, flow)
    if size % 4:
        changed = bytearray(sealed)
        changed[-5] ^= 1  # the last pad byte
        assert verify(bytes(changed), flow, 0)[0] is IcrcMatch.BAD


@pytest.mark.parametrize("flow", [V4, V6], ids=["ipv4", "ipv6"])
def test_every_byte_of_the_packet_counts_but_bth_byte_four(flow: Flow):
    sealed = seal(build(Packet(BTH(0x04, 0x11, 7), b"payload!")), flow)
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 0xFF
        expected = IcrcMatch.EXACT if position == 4 else IcrcMatch.BAD
        assert verify(bytes(changed), flow, 0)[0] is expected, position


def ipv6_packet(data: bytes) -> bytearray:
    """IPv6 header to pad, for a packet of flow V6."""
    length = 8 + len(data) + 4
    addresses = pack_address(V6.source) + pack_address(V6.destination)
    header = struct.pack(">IHBB", 0x60000000, length, 17, 64) + addresses
    return bytearray(header + struct.pack(">HHHH", 0xC123, 4791, length, 0) + data)


# Offsets from the IP header on; the header length, next header and protocol decide what is what.
@pytest.mark.parametrize(
    ("packet", "masked", "structure"),
    [
        (bytearray(GOLDEN["write"][:-4]), {1, 8, 10, 11, 26, 27, 32}, {0, 9}),
        (ipv6_packet(bytes(20)), {1, 2, 3, 7, 46, 47, 52}, {0, 6}),
    ],
    ids=["ipv4", "ipv6"],
)
def test_only_what_changes_in_flight_is_masked(
    packet: bytearray, masked: set[int], structure: set[int]
):
    """TOS, TTL, traffic class, flow label, hop limit, both checksums, BTH byte 4."""
    before = icrc_of_ip(packet)
    for position in set(range(len(packet))) - structure:
        changed = packet.copy()
        changed[position] ^= 0xA5
        assert (icrc_of_ip(changed) == before) is (position in masked), position


def test_ipv6_traffic_class_in_the_first_byte_is_masked():
    packet = ipv6_packet(bytes(12))
    crcs = set()
    for packet[0] in (0x60, 0x65, 0x6F):
        crcs.add(icrc_of_ip(packet))
    assert crcs == {icrc_of(bytes(12), V6)}


@pytest.mark.parametrize("flags", [0x0000, 0x4000, 0x8000])
def test_flags_are_taken_from_the_header(flags: int):
    data = build(Packet(BTH(0x04, 0x11, 7), b"payload!"))
    packet = bytearray(GOLDEN["write"][:28]) + data
    struct.pack_into(">HHH", packet, 2, 20 + 8 + len(data) + 4, 0xBEEF, flags)
    struct.pack_into(">H", packet, 24, 8 + len(data) + 4)
    assert icrc_of_ip(packet).to_bytes(4, "little") == naive_icrc(data, V4, 0xBEEF, flags)


def test_ip_options_are_covered_as_they_are():
    packet = bytearray(GOLDEN["write"][:-4])
    packet[0] = 0x46
    packet[20:20] = b"\x01\x01\x01\x00"
    before = icrc_of_ip(packet)
    packet[20] ^= 2
    assert icrc_of_ip(packet) != before
    middle = icrc_of_ip(packet)
    packet[36] ^= 0xFF  # BTH byte 4, four bytes further
    assert icrc_of_ip(packet) == middle


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x45" * 19,
        GOLDEN["write"][:39],
        b"\x44" + GOLDEN["write"][1:],
        b"\x55" + GOLDEN["write"][1:],
        GOLDEN["write"][:9] + b"\x06" + GOLDEN["write"][10:],
        b"\x60" + bytes(70),
    ],
    ids=["empty", "runt", "no BTH", "IHL 4", "version 5", "TCP", "IPv6 hop-by-hop"],
)
def test_no_icrc_without_udp_on_ip(data: bytes):
    with pytest.raises(WireError) as caught:
        icrc_of_ip(data)
    assert caught.value.reason == "ip"


@given(st.binary(max_size=90))
def test_icrc_of_any_bytes_raises_nothing_else(data: bytes):
    with contextlib.suppress(WireError):
        assert 0 <= icrc_of_ip(data) < 1 << 32


@pytest.mark.parametrize("size", range(16))
def test_runts(size: int):
    """Shorter than BTH and ICRC, whatever the UDP length says."""
    with pytest.raises(WireError, match=f"{size} bytes") as caught:
        verify(bytes(size), V4)
    assert caught.value.reason == "short"


@given(st.binary(min_size=16, max_size=90), flows(), st.none() | bits(16))
def test_verify_takes_any_bytes(data: bytes, flow: Flow, ip_id: int | None):
    match, found = verify(data, flow, ip_id)
    if match:
        assert data[-4:] == naive_icrc(data[:-4], flow, found)


def test_a_wrong_icrc_is_bad():
    """Of 2,000 wrong ones none passes where the ID is given or known not to be hidden."""
    numbers = random.Random(4791)
    data = build(Packet(BTH(0x04, 0x11, 7), b"payload!"))
    right = naive_icrc(data, V4)
    for _ in range(2000):
        wrong = data + numbers.randbytes(4)
        assert wrong[-4:] != right
        assert verify(wrong, V4, 0) == (IcrcMatch.BAD, 0)
        assert verify(wrong, V6) == (IcrcMatch.BAD, 0)
        # solving has 2^16 right answers among 2^32: none of these 2,000 is one
        assert verify(wrong, V4) == (IcrcMatch.BAD, 0)


def test_right_for_other_ids_is_bad_when_the_id_is_given():
    data = build(Packet(BTH(0x04, 0x11, 7), b"payload!"))
    sealed = data + naive_icrc(data, V4, ip_id=5)
    assert verify(sealed, V4, 6)[0] is IcrcMatch.BAD
    assert verify(sealed, V4, 0)[0] is IcrcMatch.BAD
    assert bool(IcrcMatch.BAD) is False
    assert all(IcrcMatch(word) for word in ("exact", "known_id", "solved"))


def test_segments_of_one_large_send_are_sealed_with_their_index():
    """The kernel numbers what it cuts (UDP GSO): segment k leaves with ID k."""
    data = build(Packet(BTH(0x01, 0x11, 7), bytes(1024)))
    for index in (1, 2, 63, 64):
        sealed = seal(data, V4, index)
        assert sealed == data + naive_icrc(data, V4, index)
        known = IcrcMatch.KNOWN_ID if index < 64 else IcrcMatch.SOLVED
        assert verify(sealed, V4) == (known, index)


def test_the_flows_table_of_states_stays_bounded():
    """A peer chooses lengths and IDs: 10,000 of them must not be remembered."""
    flow = Flow("10.0.0.1", "10.0.0.2", 0xC123)
    packet = bytes(12)
    for ip_id in range(10_000):
        icrc_of(packet, flow, ip_id)
    assert len(flow._states) <= 8192
    assert icrc_of(packet, flow, 3).to_bytes(4, "little") == naive_icrc(packet, flow, 3)


def test_addresses():
    assert pack_address("127.0.0.1") == bytes((127, 0, 0, 1))
    assert pack_address("fe80::1%eth0") == bytes.fromhex("fe80" + "00" * 13 + "01")
    with pytest.raises(ValueError, match="nonsense"):
        pack_address("nonsense")
    assert not V4.ipv6
    assert V6.ipv6
