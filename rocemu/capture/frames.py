"""UDP datagrams in the frames of a capture: built around ours, found in everyone's."""

import struct
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from rocemu.capture.model import LinkType
from rocemu.wire.icrc import Flow, pack_address

__all__ = ["UdpFrame", "build_frame", "decode_frame", "mac_of"]

_IPV4, _IPV6 = 0x0800, 0x86DD
_VLAN_TAGS = frozenset((0x8100, 0x88A8, 0x9100))
_UDP = 17
_DF, _FRAGMENT = 0x4000, 0x3FFF  # the latter: more fragments, or an offset


class UdpFrame(NamedTuple):
    """A UDP datagram as it was on the link."""

    flow: Flow
    """As the packet came: source is the sender; TOS and TTL are those seen."""
    ip_id: int
    """IPv4 identification; 0 on IPv6."""
    payload: bytes


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
    at = _network_offset(linktype, data)
    if at is None or at >= len(data):
        return None
    version = data[at] >> 4
    if version == 4:
        return _decode_ipv4(data, at)
    return _decode_ipv6(data, at) if version == 6 else None


def _network_offset(linktype: int, data: bytes) -> int | None:
    """Where the IP header begins; None where the link header announces something else."""
    match linktype:
        case LinkType.ETHERNET:
            at = 12
        case LinkType.LINUX_SLL:
            at = 14
        case LinkType.LINUX_SLL2:
            return 20 if data[:2] in (b"\x08\x00", b"\x86\xdd") else None
        case LinkType.RAW | LinkType.DLT_RAW | LinkType.IPV4 | LinkType.IPV6:
            return 0
        case LinkType.NULL | LinkType.LOOP:
            return 4  # the family's number differs between systems, the IP version does not
        case _:
            return None
    kind = int.from_bytes(data[at : at + 2], "big")
    while kind in _VLAN_TAGS:
        at += 4
        kind = int.from_bytes(data[at : at + 2], "big")
    return at + 2 if kind in (_IPV4, _IPV6) else None


def _decode_ipv4(data: bytes, at: int) -> UdpFrame | None:
    if len(data) < at + 20:
        return None
    start, tos, total, ip_id, fragment, ttl, protocol = struct.unpack_from(">BBHHHBB", data, at)
    header = (start & 15) * 4
    if header < 20 or total < header or fragment & _FRAGMENT or protocol != _UDP:
        return None
    addresses = data[at + 12 : at + 16], data[at + 16 : at + 20]
    return _decode_udp(data, at + header, total - header, addresses, tos, ttl, ip_id)


def _decode_ipv6(data: bytes, at: int) -> UdpFrame | None:
    if len(data) < at + 40:
        return None
    start, size, protocol, ttl = struct.unpack_from(">IHBB", data, at)
    if protocol != _UDP:
        return None
    addresses = data[at + 8 : at + 24], data[at + 24 : at + 40]
    return _decode_udp(data, at + 40, size, addresses, start >> 20 & 0xFF, ttl, 0)


def _decode_udp(
    data: bytes, at: int, room: int, addresses: tuple[bytes, bytes], tos: int, ttl: int, ip_id: int
) -> UdpFrame | None:
    """``room`` is what the IP header says there is; link padding behind it is left out."""
    if len(data) < at + 8:
        return None
    source_port, destination_port, size = struct.unpack_from(">HHH", data, at)
    if not 8 <= size <= room:
        return None
    flow = _flow(*addresses, source_port, destination_port, tos, ttl)
    return UdpFrame(flow, ip_id, data[at + 8 : at + size])


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
