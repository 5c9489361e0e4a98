"""What really goes over the wire, seen from outside: a packet socket on the guest's tap.

Decodes by fixed offsets and computes the ICRC with zlib, apart from the code under test.
"""

from __future__ import annotations

import socket
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

_ETH_P_ALL = 3
_SO_RCVBUFFORCE = 33
_IPV4, _IPV6 = 0x0800, 0x86DD
_LARGEST = 1 << 16

ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x11, 0x12
READ_RESPONSES = range(0x0D, 0x11)
READ_REQUEST = 0x0C
#: LAST and ONLY of SEND and WRITE, with what may go along; READ request; atomics.
ENDS_MESSAGE = {0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0A, 0x0B, 0x0C, 0x13, 0x14, 0x16, 0x17}
_WITH_RETH = {0x06, 0x0A, 0x0B, 0x0C}
_WITH_AETH = {0x0D, 0x0F, 0x10, 0x11, 0x12}
PSN_MASK = 0xFFFFFF


@dataclass(frozen=True)
class Seen:
    """One RoCEv2 packet."""

    source: str
    ip_id: int | None
    ttl: int
    udp_checksum: int
    opcode: int
    dest_qp: int
    psn: int
    syndrome: int | None
    msn: int | None
    read_length: int
    icrc_ok: bool

    @property
    def is_response(self) -> bool:
        return self.opcode in READ_RESPONSES or self.opcode in (ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE)

    @property
    def is_nak(self) -> bool:
        return self.opcode == ACKNOWLEDGE and self.syndrome is not None and self.syndrome >= 0x20


class Wiretap:
    """Collects RC packets from when it is made."""

    def __init__(self, device: str) -> None:
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        self._sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
        self._sock.bind((device, 0))
        self._sock.setblocking(False)
        self._seen: list[Seen] = []

    def close(self) -> None:
        self._sock.close()

    def peek(self) -> list[Seen]:
        """What has passed since the last :meth:`take`, in order."""
        while True:
            try:
                packet = _decode(self._sock.recv(_LARGEST))
            except BlockingIOError:
                return self._seen
            if packet is not None and packet.opcode < 0x20:
                self._seen.append(packet)

    def take(self) -> list[Seen]:
        """The same, and forget it."""
        self.peek()
        seen, self._seen = self._seen, []
        return seen


class Judge:
    """Holds every packet of a queue pair to three rules, in the direction of one requester.

    The ICRC is right.  Nothing is acknowledged that was not sent.  An acknowledgement counts, in
    its MSN, the messages that end at its PSN or before it, a NAK those that end before its PSN.
    """

    def __init__(self, requester: str, first_psn: int, path_mtu: int) -> None:
        self._requester = requester
        self._first = first_psn
        self._mtu = path_mtu
        self._ends: list[int] = []
        self._newest = -1

    def judge(self, packets: Iterable[Seen]) -> None:
        for packet in packets:
            assert packet.icrc_ok, f"wrong ICRC: {packet}"
            if packet.source == self._requester and not packet.is_response:
                self._requested(packet)
            elif packet.source != self._requester and packet.opcode == ACKNOWLEDGE:
                self._acknowledged(packet)

    def _distance(self, psn: int) -> int:
        return (psn - self._first + (1 << 23) & PSN_MASK) - (1 << 23)

    def _requested(self, packet: Seen) -> None:
        end = self._distance(packet.psn)
        if packet.opcode == READ_REQUEST:
            end += max(1, -(-packet.read_length // self._mtu)) - 1
        self._newest = max(self._newest, end)
        at = bisect_left(self._ends, end)
        if packet.opcode in ENDS_MESSAGE and self._ends[at : at + 1] != [end]:
            self._ends.insert(at, end)

    def _acknowledged(self, packet: Seen) -> None:
        psn = self._distance(packet.psn)
        assert psn <= self._newest, f"PSN {self._first + self._newest:#x} was the newest: {packet}"
        ended = (bisect_left if packet.is_nak else bisect_right)(self._ends, psn)
        assert packet.msn == ended & PSN_MASK, f"{ended} messages have ended: {packet}"


def _decode(frame: bytes) -> Seen | None:
    kind = int.from_bytes(frame[12:14], "big")
    ip = frame[14:]
    if kind == _IPV4 and ip[9] == 17:
        udp = (ip[0] & 15) * 4
        ip = ip[: int.from_bytes(ip[2:4], "big")]
        source, ip_id, ttl = ip[12:16], int.from_bytes(ip[4:6], "big"), ip[8]
    elif kind == _IPV6 and ip[6] == 17:
        udp = 40
        ip = ip[: 40 + int.from_bytes(ip[4:6], "big")]
        source, ip_id, ttl = ip[8:24], None, ip[7]
    else:
        return None
    if ip[udp + 2 : udp + 4] != b"\x12\xb7":  # 4791
        return None
    bth = ip[udp + 8 :]
    opcode = bth[0]
    aeth = struct.unpack_from(">I", bth, 12)[0] if opcode in _WITH_AETH else None
    return Seen(
        source=str(ip_address(source)),
        ip_id=ip_id,
        ttl=ttl,
        udp_checksum=int.from_bytes(ip[udp + 6 : udp + 8], "big"),
        opcode=opcode,
        dest_qp=int.from_bytes(bth[5:8], "big"),
        psn=int.from_bytes(bth[9:12], "big"),
        syndrome=None if aeth is None else aeth >> 24,
        msn=None if aeth is None else aeth & PSN_MASK,
        read_length=struct.unpack_from(">I", bth, 24)[0] if opcode in _WITH_RETH else 0,
        icrc_ok=int.from_bytes(ip[-4:], "little") == _icrc(ip, udp),
    )


def _icrc(ip: bytes, udp: int) -> int:
    masked = bytearray(ip[:-4])
    if udp == 40:
        masked[0] |= 0x0F
        masked[1:4] = b"\xff\xff\xff"
        masked[7] = 0xFF
    else:
        for at in (1, 8, 10, 11):
            masked[at] = 0xFF
    masked[udp + 6] = masked[udp + 7] = masked[udp + 12] = 0xFF
    return zlib.crc32(masked, zlib.crc32(b"\xff" * 8))
