"""What dissection shows, and that no bytes bring it down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.config import conf
from scapy.fields import RawVal
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import NoPayload, Padding, Raw, bind_layers, raw, split_layers

from layers import AETH, BTH, DETH, FETH, RETH, CNPPad
from rocemu.wire import HEADER_SIZES, OPCODES, PayloadRule
from tests.wire.examples import CONNECTX_CNP, GOLDEN


def udp_of(data: bytes, sport: int = 0xC000) -> UDP:
    """A UDP header with right length, dissected with what is behind it."""
    return UDP(raw(UDP(sport=sport, dport=4791, chksum=0) / Raw(data)))


def test_pad_and_icrc_are_shown_apart_from_the_payload():
    packet = IP(GOLDEN["write"])
    assert packet[Raw].load == b"hello"
    assert (packet[BTH].pad, packet[BTH].padding) == (3, bytes(3))
    assert packet[BTH].icrc == 0x6CF39EF5
    assert isinstance(packet[Raw].payload, NoPayload)
    shown = packet.show(dump=True)
    assert "load      = b'hello'" in shown
    assert "padding   = 000000" in shown
    assert "icrc      = 0x6cf39ef5" in shown
    assert "opcode    = RC RDMA WRITE Only" in shown


@pytest.mark.parametrize(
    ("syndrome", "text"),
    [
        (0x62, "NAK Remote Access Error"),
        (0x60, "NAK PSN Sequence Error"),
        (0x2E, "RNR NAK 1.28 ms"),
        (0x0C, "ACK credits 64"),
        (0x1F, "ACK"),
        (0x45, "reserved syndrome 0x45"),
    ],
)
def test_syndromes_in_words(syndrome: int, text: str):
    assert f"syndrome  = {text}\n" in AETH(syndrome=syndrome).show(dump=True)
    assert raw(AETH(syndrome=text)) == bytes((syndrome, 0, 0, 0))


def test_summaries():
    assert IP(GOLDEN["nak"]).summary() == (
        "IP / UDP / RC Acknowledge QP 0x12 PSN 1000 / NAK Remote Access Error MSN 0"
    )
    assert IP(CONNECTX_CNP).summary() == "IP / UDP / CNP QP 0x118 PSN 0 / CNPPad"


def test_cnp_of_a_connectx():
    packet = IP(CONNECTX_CNP)
    assert (packet[BTH].opcode, packet[BTH].becn, packet[CNPPad].reserved) == (0x81, 1, bytes(16))


def test_flush_placement_by_name():
    assert "placement = global_visibility+persistence" in FETH(b"\0\0\0\x13").show(dump=True)
    assert "selectivity= whole region" in FETH(b"\0\0\0\x13").show(dump=True)


def test_read_responses_have_an_aeth_but_the_middle_one():
    for opcode, has in ((0x0D, True), (0x0E, False), (0x0F, True), (0x10, True)):
        packet = BTH(bytes((opcode,)) + bytes(11) + bytes(4) + b"data" + bytes(4))
        assert (AETH in packet) is has


def test_reserved_opcodes_are_bth_and_raw_with_an_icrc():
    reserved = sorted(set(range(256)) - set(OPCODES))
    assert len(reserved) > 150
    for opcode in reserved:
        packet = udp_of(bytes((opcode, 0x10)) + bytes(10) + b"payload!" + b"\x01\x02\x03\x04")
        assert [type(layer) for layer in (packet[BTH], packet[BTH].payload)] == [BTH, Raw]
        assert packet[Raw].load == b"payload"
        assert packet[BTH].padding == b"!"
        assert packet[BTH].icrc == 0x01020304


@pytest.mark.parametrize("size", range(16))
def test_runts_are_raw(size: int):
    packet = udp_of(b"\x0a" * size)
    assert not packet.haslayer(BTH)
    assert bytes(packet.payload) == b"\x0a" * size


@pytest.mark.parametrize("info", OPCODES.values(), ids=lambda info: info.name)
def test_cut_headers_are_raw(info: OPCODES):
    """Each prefix of the header chain that does not hold the whole chain."""
    for size in range(info.header_bytes):
        packet = udp_of(bytes((info.opcode,)) + bytes(11) + bytes(size) + b"ICRC")
        whole, room = [], size
        for name in info.headers:
            if room < HEADER_SIZES[name]:
                break
            whole.append(name)
            room -= HEADER_SIZES[name]
        names = [type(layer).__name__ for layer in _above(packet[BTH])]
        assert names == whole + ["Raw"] * bool(room)
        assert packet[BTH].icrc == int.from_bytes(b"ICRC", "big")


def _above(layer: BTH) -> list[object]:
    found = []
    while layer.payload:
        layer = layer.payload
        found.append(layer)
    return found


def test_a_pad_count_that_reaches_into_the_headers_takes_none():
    packet = udp_of(b"\x0a\x30" + bytes(10) + bytes(range(16)) + b"xy" + bytes(4))
    assert packet[BTH].pad == 3
    assert packet[BTH].padding == b""
    assert packet[RETH].va == 0x0001020304050607
    assert packet[Raw].load == b"xy"


@given(st.binary(max_size=100))
def test_any_bytes_dissect_and_build_again(data: bytes):
    for packet in (udp_of(data), BTH(data) if data else Raw()):
        packet.show(dump=True)
        packet.summary()
    assert raw(udp_of(data).payload) == data


@pytest.mark.parametrize("opcode", range(256))
def test_every_opcode_at_every_length(opcode: int, monkeypatch: pytest.MonkeyPatch):
    """With Scapy's safety net off, which else hides errors of a dissector."""
    monkeypatch.setattr(conf, "debug_dissector", True)
    for size in range(1, 64, 3):
        data = (bytes((opcode, 0x20)) + bytes(range(62)))[:size]
        assert raw(udp_of(data).payload) == data


@pytest.mark.parametrize("ip", [IP, IPv6])
def test_a_capture_cut_short_has_no_icrc(ip: type[IP]):
    whole = raw(ip() / UDP() / BTH() / RETH() / Raw(bytes(range(100))))
    for size in (70, 100, len(whole) - 1):
        packet = ip(whole[:size])
        assert isinstance(packet[BTH].icrc, RawVal)
        assert packet[BTH].padding == b""
        assert raw(packet)[-20:] == whole[:size][-20:]
        assert "icrc" in packet.show(dump=True)


def test_ethernet_padding_is_not_the_icrc():
    data = GOLDEN["nak"] + bytes(12)
    packet = IP(data)
    assert packet[BTH].icrc == 0x53282069
    assert packet[Padding].load == bytes(12)
    assert raw(packet) == data


@pytest.mark.parametrize("sport", [53, 67, 123, 161, 4789, 5353, 49152])
def test_the_source_port_does_not_matter(sport: int):
    """Scapy knows other protocols by their source port; 4791 is ours."""
    assert udp_of(bytes(20), sport).haslayer(BTH)


def test_other_ports_are_not_ours():
    assert not UDP(raw(UDP(sport=4791, dport=9999) / Raw(bytes(20)))).haslayer(BTH)


def test_users_may_bind_their_own_protocol_to_the_payload():
    class Mine(Raw):
        name = "Mine"

    bind_layers(DETH, Mine, qkey=7)
    try:
        packet = udp_of(b"\x64" + bytes(11) + b"\0\0\0\x07\0\0\0\x01" + b"mine" + b"ICRC")
        assert packet[Mine].load == b"mine"
        other = udp_of(b"\x64" + bytes(11) + b"\0\0\0\x08\0\0\0\x01" + b"mine" + b"ICRC")
        assert not other.haslayer(Mine)
    finally:
        split_layers(DETH, Mine, qkey=7)


def test_extension_headers_dissect_alone():
    assert RETH(bytes(16) + b"data")[Raw].load == b"data"


def test_the_table_has_opcodes_without_payload():
    """A payload behind a header chain that has none is shown, not lost."""
    bare = [info for info in OPCODES.values() if info.payload is PayloadRule.NONE]
    for info in bare:
        data = bytes((info.opcode,)) + bytes(11 + info.header_bytes) + b"more" + b"ICRC"
        assert udp_of(data)[Raw].load == b"more"
