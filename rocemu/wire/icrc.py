"""The invariant CRC of RoCEv2 ([IBTA] Annex A17.3.3; masks in :func:`masked_stream`).

The CRC covers the IP header, so it is computed for a :class:`Flow` and, on IPv4, for one IP
identification.  CRC-32 is linear, and three things are made of that:

* the masked IP and UDP headers depend on the flow and the length alone: their CRC is computed once
  and :func:`seal` continues it over the packet in a single call;
* masking BTH byte 4 changes the result by a constant of the packet's length;
* each IP ID changes the result by a constant too, so a receiver whose socket does not show the ID
  can look the difference up, or solve for the 16 bits (:func:`verify`).
"""

import ipaddress
import struct
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from isal.isal_zlib import crc32

from rocemu.wire.errors import WireError

__all__ = [
    "ICRC_SIZE",
    "KNOWN_IDS",
    "ROCE_PORT",
    "Flow",
    "IcrcMatch",
    "icrc_of",
    "icrc_of_grh",
    "icrc_of_ip",
    "masked_stream",
    "pack_address",
    "seal",
    "verify",
]

#: UDP destination port of RoCEv2, requests and answers alike.
ROCE_PORT = 4791
ICRC_SIZE = 4
_BTH_SIZE = 12
_UDP_SIZE = 8
_UDP = 17
_GRH_SIZE, _GRH_NEXT_BTH = 40, 0x1B
_DF = 0x4000
#: IP IDs that our own senders use: 0, and the indexes of segments that the kernel cuts (UDP GSO).
KNOWN_IDS = 64


@lru_cache(maxsize=4096)
def pack_address(address: str) -> bytes:
    """4 or 16 bytes of an IP address in text; raises ValueError for anything else."""
    return ipaddress.ip_address(address.partition("%")[0]).packed


@dataclass(frozen=True, slots=True)
class Flow:
    """Addresses, ports and IP fields that one direction of a queue pair sends with."""

    source: str
    """IPv4 or IPv6 address in text; ``destination`` is of the same family."""
    destination: str
    source_port: int
    destination_port: int = ROCE_PORT
    tos: int = 0
    """DSCP and ECN; IPv6 traffic class."""
    ttl: int = 64
    _states: dict[tuple[int, int], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def ipv6(self) -> bool:
        return ":" in self.source


def masked_stream(packet: bytes | memoryview, flow: Flow, ip_id: int = 0) -> bytes:
    """All bytes that go into the CRC of ``packet`` (BTH to pad), variable fields as ones.

    Eight bytes of ones for the LRH, the IP header (IPv4: TOS, TTL and checksum masked; IPv6:
    traffic class, flow label and hop limit), the UDP header (checksum masked), the BTH (byte 4
    masked) and the rest.  Lengths count the ICRC.
    """
    return _masked_ip_udp(flow, len(packet), ip_id) + packet[:4] + b"\xff" + bytes(packet[5:])


def _masked_ip_udp(flow: Flow, size: int, ip_id: int) -> bytes:
    udp_length = _UDP_SIZE + size + ICRC_SIZE
    source, destination = pack_address(flow.source), pack_address(flow.destination)
    if len(source) == 4:
        ip = struct.pack(">BBHHHBBH", 0x45, 0xFF, 20 + udp_length, ip_id, _DF, 0xFF, _UDP, 0xFFFF)
    else:
        ip = struct.pack(">IHBB", 0x6FFFFFFF, udp_length, _UDP, 0xFF)
    udp = struct.pack(">HHHH", flow.source_port, flow.destination_port, udp_length, 0xFFFF)
    return b"\xff" * 8 + ip + source + destination + udp


def _shift(data: bytes, zeros: int) -> int:
    """The CRC register, begun at 0 and not complemented, after ``data`` and that many zeros."""
    return crc32(data + bytes(zeros), 0xFFFFFFFF) ^ 0xFFFFFFFF


@lru_cache(maxsize=8192)
def _byte4_fold(size: int, difference: int) -> int:
    """What flipping bits ``difference`` of BTH byte 4 does to the CRC of a packet of ``size``."""
    return _shift(bytes((difference,)), size - 5)


@lru_cache(maxsize=8192)
def _id_basis(size: int) -> tuple[int, ...]:
    """What each IP ID bit (0 first) does to the CRC of a packet of ``size`` bytes."""
    behind = 14 + _UDP_SIZE + size
    return tuple(_shift(struct.pack(">H", 1 << bit), behind) for bit in range(16))


def _id_difference(size: int, ip_id: int) -> int:
    difference, basis = 0, _id_basis(size)
    while ip_id:
        low = ip_id & -ip_id
        difference ^= basis[low.bit_length() - 1]
        ip_id ^= low
    return difference


@lru_cache(maxsize=512)
def _known_differences(size: int) -> dict[int, int]:
    return {_id_difference(size, ip_id): ip_id for ip_id in range(KNOWN_IDS)}


@lru_cache(maxsize=512)
def _elimination(size: int) -> tuple[tuple[int, int], ...]:
    """The ID basis in echelon form: (CRC bits, ID bits), leading bits all different."""
    rows: list[tuple[int, int]] = []
    for bit, value in enumerate(_id_basis(size)):
        ids = 1 << bit
        for row_value, row_ids in rows:
            if value ^ row_value < value:
                value, ids = value ^ row_value, ids ^ row_ids
        rows.append((value, ids))
        rows.sort(reverse=True)
    return tuple(rows)


def _solve_id(size: int, difference: int) -> int | None:
    """The one IP ID that changes the CRC by ``difference``, or None."""
    ip_id = 0
    for value, ids in _elimination(size):
        if difference ^ value < difference:
            difference, ip_id = difference ^ value, ip_id ^ ids
    return None if difference else ip_id


def icrc_of(packet: bytes | memoryview, flow: Flow, ip_id: int = 0) -> int:
    """The ICRC of ``packet`` (BTH to pad, at least 12 bytes) as zlib's CRC-32 number."""
    size = len(packet)
    state = flow._states.get((size, ip_id))
    if state is None:
        if len(flow._states) >= 8192:  # sizes come from the peer: keep the table bounded
            flow._states.clear()
        state = crc32(_masked_ip_udp(flow, size, 0 if flow.ipv6 else ip_id))
        flow._states[size, ip_id] = state
    return crc32(packet, state) ^ _byte4_fold(size, packet[4] ^ 0xFF)


def icrc_of_ip(data: bytes | memoryview) -> int:
    """The ICRC of a packet whose IP header is at hand: ``data`` is that header to pad.

    For captures and crafted packets, where ID, flags, options and lengths may be anything: they are
    taken as written (lengths count the ICRC, which is not in ``data``).  Raises WireError, reason
    ``ip``, when this is not a BTH in UDP right behind an IPv4 or IPv6 header.
    """
    masked = bytearray(data)
    version = masked[0] >> 4 if len(masked) >= 20 else 0
    if version == 4:
        udp, protocol = (masked[0] & 15) * 4, masked[9]
        masked[1] = masked[8] = masked[10] = masked[11] = 0xFF
    elif version == 6:
        udp, protocol = 40, masked[6]
        masked[0] |= 0x0F
        masked[1] = masked[2] = masked[3] = masked[7] = 0xFF
    else:
        raise WireError("ip", "neither an IPv4 nor an IPv6 header")
    bth = udp + _UDP_SIZE
    if udp < 20 or protocol != _UDP or len(masked) < bth + _BTH_SIZE:
        raise WireError("ip", f"IPv{version}, but no UDP with a BTH right behind it")
    masked[bth - 2] = masked[bth - 1] = masked[bth + 4] = 0xFF
    return crc32(b"\xff" * 8 + masked)


def icrc_of_grh(data: bytes | memoryview) -> int:
    """The ICRC of a RoCEv1 packet: ``data`` is its GRH to pad.

    The GRH is masked as an IPv6 header is, and no UDP header follows it.  Raises WireError, reason
    ``ip``, when this is not a BTH right behind a GRH.
    """
    masked = bytearray(data)
    if len(masked) < _GRH_SIZE + _BTH_SIZE or masked[0] >> 4 != 6 or masked[6] != _GRH_NEXT_BTH:
        raise WireError("ip", "not a GRH with a BTH right behind it")
    masked[0] |= 0x0F
    masked[1] = masked[2] = masked[3] = masked[7] = masked[_GRH_SIZE + 4] = 0xFF
    return crc32(b"\xff" * 8 + masked)


def seal(packet: bytes, flow: Flow, ip_id: int = 0) -> bytes:
    """``packet`` with its ICRC: what goes into the UDP datagram.

    ``ip_id`` is the IPv4 identification that the packet will leave with (DF set); an unconnected
    socket with IP_PMTUDISC_DO sends 0.
    """
    return packet + icrc_of(packet, flow, ip_id).to_bytes(4, "little")


class IcrcMatch(Enum):
    """How :func:`verify` found an ICRC right, or that it is wrong."""

    EXACT = "exact"
    """Nothing was hidden: IPv6, or the IP ID was given."""
    KNOWN_ID = "known_id"
    """Right for an IP ID that our own senders use."""
    SOLVED = "solved"
    """Right for the one IP ID that fits: a wrong ICRC passes once in 65,536."""
    BAD = "bad"

    def __bool__(self) -> bool:
        return self is not IcrcMatch.BAD


def verify(
    datagram: bytes | memoryview, flow: Flow, ip_id: int | None = None
) -> tuple[IcrcMatch, int]:
    """Check a UDP payload (BTH to ICRC); gives the match and the IP ID.

    ``flow`` describes the packet as it came: source is the sender.  ``ip_id`` is None where the
    socket does not show it; the ID found is returned, 0 where none was.  DF is taken as set.
    Raises WireError, reason ``short``, for less than a BTH and an ICRC.
    """
    if len(datagram) < _BTH_SIZE + ICRC_SIZE:
        raise WireError("short", f"{len(datagram)} bytes, a BTH with its ICRC is 16")
    packet = datagram[:-ICRC_SIZE]
    stored = int.from_bytes(datagram[-ICRC_SIZE:], "little")
    difference = icrc_of(packet, flow, ip_id or 0) ^ stored
    if flow.ipv6 or ip_id is not None:
        return (IcrcMatch.BAD if difference else IcrcMatch.EXACT), ip_id or 0
    size = len(packet)
    known = _known_differences(size).get(difference)
    if known is not None:
        return IcrcMatch.KNOWN_ID, known
    solved = _solve_id(size, difference)
    return (IcrcMatch.BAD, 0) if solved is None else (IcrcMatch.SOLVED, solved)
