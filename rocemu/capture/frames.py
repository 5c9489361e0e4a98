"""UDP datagrams in the frames of a capture: built around ours, found in everyone's."""

import struct
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from rocemu.capture.model import ErfType, LinkType
from rocemu.wire.icrc import Flow, pack_address

__all__ = [
    "Located",
    "Network",
    "UdpFrame",
    "build_frame",
    "decode_frame",
    "locate",
    "mac_of",
    "udp_frame",
]

_IPV4, _IPV6 = 0x0800, 0x86DD
_VLAN_TAGS = frozenset((0x8100, 0x88A8, 0x9100))
_UDP = 17
_ROCE_V1, _GRH_NEXT_BTH = 0x8915, 0x1B
_NATIVE = -1  # in place of an Ethertype: a local route header
_DF, _FRAGMENT = 0x4000, 0x3FFF  # the latter: more fragments, or an offset


class UdpFrame(NamedTuple):
    """A UDP datagram as it was on the link."""

    flow: Flow
    """As the packet came: source is the sender; TOS and TTL are those seen."""
    ip_id: int
    """IPv4 identification; 0 on IPv6."""
    payload: bytes


class Network(StrEnum):
    """What a frame carries above its link header."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"
    GRH = "RoCEv1"
    """A global route header right behind Ethertype 0x8915."""
    INFINIBAND = "native InfiniBand"
    """A local route header: not RoCE, named and not looked into."""
    OTHER = "neither IP nor RoCE"


class Located(NamedTuple):
    """Where things are in a captured frame; ``payload`` and ``end`` for UDP and RoCEv1 alone."""

    network: Network
    network_at: int = 0
    udp: int | None = None
    """Where a whole UDP header begins."""
    payload: int | None = None
    end: int = 0
    """Where the payload ends by the headers; behind the frame's end where that was cut."""


def mac_of(address: str) -> bytes:
    """A locally administered MAC for an IP address, so that it can be read off: 02:42 and the
    four bytes of IPv4, 02 and the last five of IPv6."""
    packed = pack_address(address)
    return b"\x02\x42" + packed if len(packed) == 4 else b"\x02" + packed[-5:]


@lru_cache(maxsize=4096)
def _ethernet(source: str, destination: str) -> bytes:
    kind = _IPV6 if ":" in source else _IPV4
    return mac_of(destination) + mac_of(source) + kind.to_bytes(2, "big")


def _checksum(data: bytes) -> int:
    """The Internet checksum of ``data`` of even length ([RFC 1071]).

    Its one's complement sum of 16-bit words is the remainder by 2^16 - 1, since 2^16 leaves 1.
    """
    return -int.from_bytes(data, "big") % 0xFFFF


def build_frame(
    flow: Flow, ip_id: int, payload: bytes, *, tos: int | None = None, ttl: int | None = None
) -> bytes:
    """An Ethernet frame with ``payload`` (BTH to ICRC) as ``flow`` sends it.

    DF is set.  The UDP checksum is 0 on IPv4, as adapters send it, and right on IPv6, where it
    may not be left out; the flow label is 0.  ``tos`` and ``ttl`` take the place of the flow's.
    Raises ValueError for a payload that no datagram can carry.
    """
    tos = flow.tos if tos is None else tos
    ttl = flow.ttl if ttl is None else ttl
    source, destination = pack_address(flow.source), pack_address(flow.destination)
    size = 8 + len(payload)
    if size > (0xFFFF if flow.ipv6 else 0xFFFF - 20):
        raise ValueError(f"{len(payload)} bytes are more than a datagram can carry")
    ports = struct.pack(">HHH", flow.source_port, flow.destination_port, size)
    if flow.ipv6:
        ip = struct.pack(">IHBB", 6 << 28 | tos << 20, size, _UDP, ttl) + source + destination
        pseudo = struct.pack(">IHH", size, 0, _UDP)
        even = b"\0" if size % 2 else b""
        summed = b"".join((source, destination, pseudo, ports, payload, even))
        checksum = _checksum(summed) or 0xFFFF
    else:
        start = struct.pack(">BBHHHBB", 0x45, tos, 20 + size, ip_id, _DF, ttl, _UDP)
        header_checksum = _checksum(start + source + destination)
        ip = start + header_checksum.to_bytes(2, "big") + source + destination
        checksum = 0
    return b"".join(
        (_ethernet(flow.source, flow.destination), ip, ports, checksum.to_bytes(2, "big"), payload)
    )


def decode_frame(linktype: int, data: bytes) -> UdpFrame | None:
    """The UDP datagram in a captured frame, None for whatever is no whole one; any port.

    Fragments are none, nor IPv6 packets with extension headers.  Where the capture cut the packet
    (:attr:`CapturedPacket.cut`) the payload is what is left of it.
    """
    return udp_frame(locate(linktype, data), data)


def udp_frame(found: Located, data: bytes) -> UdpFrame | None:
    """As :func:`decode_frame`, for a frame that was located before."""
    if found.udp is None:
        return None
    at, udp = found.network_at, found.udp
    if found.network is Network.IPV4:
        tos, ip_id, ttl = data[at + 1], int.from_bytes(data[at + 4 : at + 6], "big"), data[at + 8]
        addresses = data[at + 12 : at + 16], data[at + 16 : at + 20]
    else:
        tos, ip_id, ttl = (data[at] << 4 | data[at + 1] >> 4) & 0xFF, 0, data[at + 7]
        addresses = data[at + 8 : at + 24], data[at + 24 : at + 40]
    ports = struct.unpack_from(">HH", data, udp)
    flow = _flow(*addresses, *ports, tos, ttl)
    return UdpFrame(flow, ip_id, data[udp + 8 : found.end])


def locate(linktype: int, data: bytes) -> Located:
    """Find network header, UDP and payload in a captured frame, whatever its link type."""
    kind, at = _behind_link(linktype, data)
    if kind in (_IPV4, _IPV6):  # the version decides, as it does in every stack
        version = data[at] >> 4 if at < len(data) else 0
        if version == 4:
            return _locate_ipv4(data, at)
        return _locate_ipv6(data, at) if version == 6 else Located(Network.OTHER)
    if kind == _ROCE_V1:
        return _locate_grh(data, at)
    return Located(Network.INFINIBAND if kind == _NATIVE else Network.OTHER, at)


def _behind_link(linktype: int, data: bytes) -> tuple[int, int]:
    """Ethertype of what is behind the link header, and where it begins."""
    match linktype:
        case LinkType.ETHERNET:
            return _behind_tags(data, 12)
        case LinkType.LINUX_SLL:
            return _behind_tags(data, 14)
        case LinkType.LINUX_SLL2:
            kind = int.from_bytes(data[:2], "big")
            return _behind_tags(data, 22) if kind in _VLAN_TAGS else (kind, 20)
        case LinkType.RAW | LinkType.DLT_RAW | LinkType.IPV4 | LinkType.IPV6:
            return _IPV4, 0
        case LinkType.NULL | LinkType.LOOP:
            return _IPV4, 4  # the family's number differs between systems, the IP version does not
        case LinkType.INFINIBAND:
            return _NATIVE, 0
        case LinkType.ERF:
            return _behind_erf(data)
        case _:
            return 0, 0


def _behind_tags(data: bytes, at: int) -> tuple[int, int]:
    kind = int.from_bytes(data[at : at + 2], "big")
    while kind in _VLAN_TAGS:
        at += 4
        kind = int.from_bytes(data[at : at + 2], "big")
    return kind, at + 2


def _behind_erf(data: bytes) -> tuple[int, int]:
    """An ERF header: 16 bytes, 8 more for every extension header announced by bit 7."""
    at, more = 16, len(data) > 8 and data[8] & 0x80
    while more:
        more = at < len(data) and data[at] & 0x80
        at += 8
    match data[8] & 0x7F if len(data) > 8 else 0:
        case ErfType.ETHERNET:
            return _behind_tags(data, at + 2 + 12)  # two bytes of offset and pad before the frame
        case ErfType.INFINIBAND | ErfType.INFINIBAND_LINK:
            return _NATIVE, at
        case _:
            return 0, 0


def _locate_ipv4(data: bytes, at: int) -> Located:
    nothing = Located(Network.IPV4, at)
    if len(data) < at + 20:
        return Located(Network.OTHER)
    start, _, total, _, fragment, _, protocol = struct.unpack_from(">BBHHHBB", data, at)
    header = (start & 15) * 4
    if header < 20 or total < header or fragment & _FRAGMENT or protocol != _UDP:
        return nothing
    return _locate_udp(data, at + header, total - header, nothing)


def _locate_ipv6(data: bytes, at: int) -> Located:
    nothing = Located(Network.IPV6, at)
    if len(data) < at + 40:
        return Located(Network.OTHER)
    size, protocol = struct.unpack_from(">HB", data, at + 4)
    return nothing if protocol != _UDP else _locate_udp(data, at + 40, size, nothing)


def _locate_udp(data: bytes, at: int, room: int, nothing: Located) -> Located:
    """``room`` is what the IP header says there is; link padding behind it is left out."""
    if len(data) < at + 8:
        return nothing
    size = int.from_bytes(data[at + 4 : at + 6], "big")
    if not 8 <= size <= room:
        return nothing
    return nothing._replace(udp=at, payload=at + 8, end=at + size)


def _locate_grh(data: bytes, at: int) -> Located:
    """A GRH looks like an IPv6 header; its next header says that a BTH follows."""
    if len(data) < at + 40 or data[at] >> 4 != 6 or data[at + 6] != _GRH_NEXT_BTH:
        return Located(Network.OTHER)
    size = int.from_bytes(data[at + 4 : at + 6], "big")
    return Located(Network.GRH, at, None, at + 40, at + 40 + size)


@lru_cache(maxsize=4096)
def _flow(
    source: bytes, destination: bytes, source_port: int, destination_port: int, tos: int, ttl: int
) -> Flow:
    """One object for all packets of a flow, which so share what the ICRC keeps in it."""
    return Flow(
        str(ip_address(source)),
        str(ip_address(destination)),
        source_port,
        destination_port,
        tos,
        ttl,
    )
