"""Frames around datagrams: golden bytes, Scapy's and tshark's opinion, and every link type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import ARP, CookedLinux, CookedLinuxV2, Dot1AD, Dot1Q, Ether, Loopback
from scapy.packet import Packet, Raw

from rocemu.capture import LinkType, Network, build_frame, decode_frame, locate, mac_of
from rocemu.wire.icrc import Flow, IcrcMatch, verify

FLOW6 = Flow("fd00::1:2", "fd00::3", 0xC123, tos=2, ttl=9)
IN_IP = IP(src="10.0.0.1", dst="10.0.0.2", id=7, tos=2, ttl=9, flags="DF") / UDP(
    sport=0xC123, dport=4791
)
IN_IP6 = IPv6(src="fd00::1", dst="fd00::2", tc=2, hlim=9, fl=0x12345) / UDP(
    sport=0xC123, dport=4791
)
PAYLOAD = b"sixteen bytes ok"


def test_golden_packet_is_rebuilt_byte_for_byte(golden) -> None:
    frame = build_frame(golden.flow, 0, golden.payload)
    assert frame[14:] == golden.ip


def test_golden_packet_is_found_again_and_its_icrc_holds(golden) -> None:
    ethernet = bytes(Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02", type=0x0800))
    found = decode_frame(LinkType.ETHERNET, ethernet + golden.ip)
    assert found is not None
    assert (found.flow, found.ip_id, found.payload) == (golden.flow, 0, golden.payload)
    assert verify(found.payload, found.flow, found.ip_id)[0] is IcrcMatch.EXACT


def test_macs_are_local_and_show_the_address() -> None:
    assert mac_of("192.168.7.9").hex(":") == "02:42:c0:a8:07:09"
    assert mac_of("fd00::12:3456:789a").hex(":") == "02:12:34:56:78:9a"
    frame = build_frame(Flow("10.0.0.1", "10.0.0.2", 50000), 0, PAYLOAD)
    assert frame[:14].hex() == "02420a00000202420a0000010800"


@pytest.mark.parametrize("payload", [PAYLOAD, PAYLOAD + b"x"], ids=["even", "odd"])
def test_ipv4_headers_as_scapy_computes_them(payload: bytes) -> None:
    flow = Flow("10.9.8.7", "172.31.255.254", 65535, tos=0xBA, ttl=3)
    ours = IP(build_frame(flow, 0xBEEF, payload)[14:])
    theirs = IP(src=flow.source, dst=flow.destination, id=0xBEEF, flags="DF", tos=0xBA, ttl=3)
    theirs /= UDP(sport=65535, dport=4791, chksum=0) / Raw(payload)
    assert bytes(ours) == bytes(theirs)


@pytest.mark.parametrize("payload", [PAYLOAD, PAYLOAD + b"x"], ids=["even", "odd"])
def test_ipv6_headers_and_udp_checksum_as_scapy_computes_them(payload: bytes) -> None:
    theirs = IPv6(src=FLOW6.source, dst=FLOW6.destination, tc=2, hlim=9)
    theirs /= UDP(sport=0xC123, dport=4791) / Raw(payload)
    frame = build_frame(FLOW6, 0, payload)
    assert frame[12:14] == b"\x86\xdd"
    assert frame[14:] == bytes(theirs)


def test_udp_checksum_that_comes_out_zero_is_sent_as_ones() -> None:
    checksum = build_frame(FLOW6, 0, bytes(2))[60:62]
    # the payload now brings the sum to all ones, whose complement is 0: "no checksum" on the wire
    assert build_frame(FLOW6, 0, checksum)[60:62] == b"\xff\xff"


def test_tos_and_ttl_seen_take_the_place_of_the_flows() -> None:
    ip = IP(build_frame(Flow("10.0.0.1", "10.0.0.2", 50000), 0, PAYLOAD, tos=3, ttl=0)[14:])
    assert (ip.tos, ip.ttl) == (3, 0)


@pytest.mark.parametrize(("source", "most"), [("10.0.0.1", 65507), ("fd00::1", 65527)])
def test_largest_datagram_is_framed_and_a_larger_one_refused(source: str, most: int) -> None:
    flow = Flow(source, source, 50000)
    found = decode_frame(LinkType.ETHERNET, build_frame(flow, 0, bytes(most)))
    assert found is not None
    assert len(found.payload) == most
    with pytest.raises(ValueError, match=f"{most + 1} bytes"):
        build_frame(flow, 0, bytes(most + 1))


LINKS = {
    "ethernet": (LinkType.ETHERNET, Ether()),
    "vlan": (LinkType.ETHERNET, Ether() / Dot1Q(vlan=5)),
    "qinq": (LinkType.ETHERNET, Ether() / Dot1AD(vlan=5) / Dot1Q(vlan=6)),
    "cooked": (LinkType.LINUX_SLL, CookedLinux()),
    "cooked_vlan": (LinkType.LINUX_SLL, CookedLinux() / Dot1Q(vlan=5)),
    "cooked2": (LinkType.LINUX_SLL2, CookedLinuxV2()),
    "raw": (LinkType.RAW, None),
    "dlt_raw": (LinkType.DLT_RAW, None),
}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("ip", [IN_IP, IN_IP6], ids=["ipv4", "ipv6"])
def test_every_link_type_scapy_can_write(link: str, ip: Packet) -> None:
    linktype, header = LINKS[link]
    packet = ip / Raw(PAYLOAD)
    found = decode_frame(linktype, bytes(header / packet if header else packet))
    assert found is not None
    assert (found.flow.source, found.flow.destination) == (ip.src, ip.dst)
    assert (found.flow.source_port, found.flow.destination_port) == (0xC123, 4791)
    assert (found.flow.tos, found.flow.ttl) == (2, 9)
    assert found.ip_id == (7 if ip is IN_IP else 0)
    assert found.payload == PAYLOAD


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize(("ip", "family"), [(IN_IP, 2), (IN_IP6, 30), (IN_IP6, 24)])
@pytest.mark.parametrize("linktype", [LinkType.NULL, LinkType.LOOP])
def test_loopback_whatever_the_family_number(linktype, ip, family, order) -> None:
    found = decode_frame(linktype, family.to_bytes(4, order) + bytes(ip / Raw(PAYLOAD)))
    assert found is not None
    assert found.payload == PAYLOAD


def test_scapys_own_loopback_layer() -> None:
    found = decode_frame(LinkType.NULL, bytes(Loopback() / IN_IP / Raw(PAYLOAD)))
    assert found is not None
    assert found.flow.source == "10.0.0.1"


def test_packets_of_a_flow_share_one_flow_object() -> None:
    frame = bytes(Ether() / IN_IP / Raw(PAYLOAD))
    first, second = decode_frame(1, frame), decode_frame(1, frame)
    assert first is not None
    assert second is not None
    assert first.flow is second.flow


def test_ip_options_are_stepped_over() -> None:
    packet = IP(src="10.0.0.1", dst="10.0.0.2", options=[IPOption_NOP()] * 4) / UDP(dport=4791)
    found = decode_frame(LinkType.RAW, bytes(packet / Raw(PAYLOAD)))
    assert found is not None
    assert found.payload == PAYLOAD


def test_link_padding_is_left_out() -> None:
    found = decode_frame(LinkType.ETHERNET, bytes(Ether() / IN_IP / Raw(b"ab")) + bytes(20))
    assert found is not None
    assert found.payload == b"ab"


def test_what_a_snap_length_left_of_the_payload_is_given() -> None:
    found = decode_frame(LinkType.ETHERNET, bytes(Ether() / IN_IP / Raw(PAYLOAD))[:-6])
    assert found is not None
    assert found.payload == PAYLOAD[:-6]


NO_DATAGRAM = {
    "arp": (1, bytes(Ether() / ARP())),
    "tcp": (1, bytes(Ether() / IP() / TCP())),
    "tcp6": (1, bytes(Ether() / IPv6() / TCP())),
    "roce v1": (1, bytes(Ether(type=0x8915) / IN_IP6 / Raw(PAYLOAD))),
    "802.3 length": (1, bytes(Ether(type=60) / IN_IP)),
    "cooked arp": (276, bytes(CookedLinuxV2() / ARP())),
    "first fragment": (101, bytes(IP(flags="MF") / UDP(dport=4791))),
    "last fragment": (101, bytes(IP(frag=2) / UDP(dport=4791))),
    "fragment6": (101, bytes(IPv6() / IPv6ExtHdrFragment() / UDP(dport=4791))),
    "version 5": (101, b"\x55" + bytes(IN_IP / Raw(PAYLOAD))[1:]),
    "ihl 4": (101, b"\x44" + bytes(IN_IP / Raw(PAYLOAD))[1:]),
    "udp length 7": (101, bytes(IP() / UDP(len=7))),
    "udp longer than ip": (101, bytes(IP() / UDP(len=9))),
    "ip shorter than its header": (101, bytes(IP(len=12) / UDP())),
    "unknown link": (197, bytes(Ether() / IN_IP / Raw(PAYLOAD))),
    "nothing": (1, b""),
}


@pytest.mark.parametrize("case", NO_DATAGRAM)
def test_what_is_no_whole_datagram_is_none(case: str) -> None:
    linktype, data = NO_DATAGRAM[case]
    assert decode_frame(linktype, data) is None


@pytest.mark.parametrize("header", [Ether() / IN_IP, Ether() / Dot1Q() / IN_IP6])
def test_frames_cut_inside_the_headers_are_none(header: Packet) -> None:
    whole = bytes(header / Raw(PAYLOAD))
    for size in range(len(whole) - len(PAYLOAD)):
        assert decode_frame(LinkType.ETHERNET, whole[:size]) is None, size


_FRAMES = [bytes(header / IN_IP / Raw(PAYLOAD)) for _, header in LINKS.values() if header]


@given(
    st.sampled_from([*LinkType, 197]),
    st.one_of(
        st.binary(max_size=100),
        st.builds(
            lambda frame, at, value: frame[:at] + bytes((value,)) + frame[at + 1 :],
            st.sampled_from(_FRAMES),
            st.integers(0, 60),
            st.integers(0, 255),
        ),
    ),
)
def test_any_bytes_give_a_part_of_themselves_or_none(linktype: int, data: bytes) -> None:
    found = decode_frame(linktype, data)
    assert found is None or found.payload in data


_ADDRESSES = st.one_of(
    st.tuples(*[st.ip_addresses(v=4).map(str)] * 2), st.tuples(*[st.ip_addresses(v=6).map(str)] * 2)
)


@given(
    _ADDRESSES,
    st.integers(0, 65535),
    st.integers(0, 255),
    st.integers(0, 255),
    st.integers(0, 65535),
    st.binary(max_size=200),
)
def test_what_was_built_is_found_again(addresses, port, tos, ttl, ip_id, payload) -> None:
    flow = Flow(*addresses, port, tos=tos, ttl=ttl)
    found = decode_frame(LinkType.ETHERNET, build_frame(flow, ip_id, payload))
    assert found == (flow, 0 if flow.ipv6 else ip_id, payload)


GRH = bytes.fromhex("6ab12345001c1b3f") + bytes(range(32))


@pytest.mark.parametrize("link", ["ethernet", "vlan", "qinq", "cooked", "cooked_vlan"])
def test_rocev1_is_found_behind_every_link_with_an_ethertype(link: str) -> None:
    linktype, header = LINKS[link]
    behind = bytes(header / IN_IP6)[: len(header)]
    data = behind[:-2] + b"\x89\x15" + GRH + bytes(28)
    found = locate(linktype, data)
    at = len(header)
    assert found == (Network.GRH, at, None, at + 40, at + 68)
    assert decode_frame(linktype, data) is None


@pytest.mark.parametrize("change", [(0, 0x4A), (6, 0x11)], ids=["version", "next header"])
def test_what_is_no_grh_with_a_bth_is_other(change: tuple[int, int]) -> None:
    grh = bytearray(GRH)
    grh[change[0]] = change[1]
    assert locate(1, bytes(12) + b"\x89\x15" + bytes(grh)).network is Network.OTHER
    assert locate(1, bytes(12) + b"\x89\x15" + GRH[:39]).network is Network.OTHER


def test_a_vlan_tag_in_a_cooked_v2_frame() -> None:
    head = b"\x81\x00" + bytes(18) + b"\0\5\x08\0"
    assert locate(LinkType.LINUX_SLL2, head + bytes(IN_IP / Raw(PAYLOAD))).udp == 44


def test_places_in_a_frame() -> None:
    frame = bytes(Ether() / Dot1Q() / IN_IP / Raw(PAYLOAD))
    assert locate(1, frame) == (Network.IPV4, 18, 38, 46, 62)
    assert locate(1, frame[:50]) == (Network.IPV4, 18, 38, 46, 62), "cut"
    assert locate(1, bytes(Ether() / ARP())).network is Network.OTHER
