"""The usual mistakes in computing an ICRC, as a table: what each puts into the CRC, or makes of it.

An ICRC that is wrong is nearly always right for something else.  Each row of :data:`STREAMS` gives
the bytes that one mistake takes for the stream of the CRC, each of RESULTS in
:mod:`rocemu.audit.icrc_results` what is made of the CRC; a wrong ICRC is explained by the pair that
gives exactly its four bytes.  There are a few thousand pairs for a packet and 2^32 ICRCs, so chance
hardly ever explains anything.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from rocemu.wire import BTH, ICRC_SIZE, pack_address

__all__ = ["STREAMS", "Parts", "Stream"]

_ONES = b"\xff" * 8
_IPV4, _GRH = "IPv4", "RoCEv1"


@dataclass(frozen=True, slots=True)
class Parts:
    """A packet taken apart; all of it as captured, without the ICRC."""

    network: str
    """``IPv4``, ``IPv6`` or ``RoCEv1``."""
    ip: bytes
    """The IP header, or the GRH."""
    udp: bytes
    """Empty for RoCEv1."""
    packet: bytes
    """BTH to pad."""
    pad: int
    addresses: tuple[bytes, ...] = ()
    """Other addresses that may have been in the place of those that are there."""

    def replaced(self, *, ip: bytes | None = None, udp: bytes | None = None) -> "Parts":
        return Parts(
            self.network,
            self.ip if ip is None else ip,
            self.udp if udp is None else udp,
            self.packet,
            self.pad,
            self.addresses,
        )

    def masked(self, keep: frozenset[str] = frozenset(), value: int = 0xFF) -> bytes:
        """What goes into the CRC behind the eight bytes of ones; ``keep`` are not masked."""
        ip, udp, packet = bytearray(self.ip), bytearray(self.udp), bytearray(self.packet)
        wide = self.network != _IPV4
        for name, at, bits in _MASKS6 if wide else _MASKS4:
            if name not in keep:
                ip[at] = ip[at] & ~bits & 0xFF | value & bits
        if udp and "UDP checksum" not in keep:
            udp[6] = udp[7] = value
        if "BTH byte 4" not in keep:
            packet[4] = value
        return bytes(ip + udp + packet)


#: Masked bits of the IP headers: name, byte, bits.
_MASKS4 = (
    ("TOS", 1, 0xFF),
    ("TTL", 8, 0xFF),
    ("IP header checksum", 10, 0xFF),
    ("IP header checksum", 11, 0xFF),
)
_MASKS6 = (
    ("traffic class", 0, 0x0F),
    ("traffic class", 1, 0xF0),
    ("flow label", 1, 0x0F),
    ("flow label", 2, 0xFF),
    ("flow label", 3, 0xFF),
    ("hop limit", 7, 0xFF),
)
_ALWAYS = ("UDP checksum", "BTH byte 4")


class Stream(NamedTuple):
    """A mistake in what goes into the CRC."""

    name: str
    """Stable; the documents and JSON have it."""
    meaning: str
    make: Callable[[Parts], Iterator[tuple[str, bytes]]]
    """What exactly (may be empty), and the bytes."""


def _right(p: Parts) -> Iterator[tuple[str, bytes]]:
    yield "", _ONES + p.masked()


def _unmasked(p: Parts) -> Iterator[tuple[str, bytes]]:
    names = dict.fromkeys(name for name, _, _ in (_MASKS4 if p.network == _IPV4 else _MASKS6))
    fields = [*names, *(_ALWAYS if p.udp else _ALWAYS[1:])]
    for count in range(1, len(fields) + 1):
        for kept in combinations(fields, count):
            yield ", ".join(kept), _ONES + p.masked(frozenset(kept))


def _zeros(p: Parts) -> Iterator[tuple[str, bytes]]:
    yield "", _ONES + p.masked(value=0)


def _ones_before(p: Parts) -> Iterator[tuple[str, bytes]]:
    for count in (0, *range(1, 8), *range(9, 41)):
        yield f"{count} of them", b"\xff" * count + p.masked()


def _zeros_before(p: Parts) -> Iterator[tuple[str, bytes]]:
    yield "", bytes(8) + p.masked()


def _more_masked(p: Parts) -> Iterator[tuple[str, bytes]]:
    at = len(p.ip) + len(p.udp)
    for name, first, last in (("BTH byte 8", 8, 8), ("BTH byte 1", 1, 1), ("P_Key", 2, 3)):
        masked = bytearray(p.masked())
        masked[at + first : at + last + 1] = b"\xff" * (last + 1 - first)
        yield name, _ONES + bytes(masked)
    if p.network == _IPV4:
        for name, first, last in (("IP ID", 4, 5), ("fragment field", 6, 7)):
            masked = bytearray(p.masked())
            masked[first : last + 1] = b"\xff" * (last + 1 - first)
            yield name, _ONES + bytes(masked)
    if p.udp:
        masked = bytearray(p.masked())
        masked[len(p.ip) : len(p.ip) + 2] = b"\xff\xff"
        yield "UDP source port", _ONES + bytes(masked)


def _pad_out(p: Parts) -> Iterator[tuple[str, bytes]]:
    if p.pad:
        yield "", _ONES + p.masked()[: -p.pad]
        for field, parts in _lengths(p, -p.pad):
            yield f"and of {field}", _ONES + parts.masked()[: -p.pad]


def _icrc_in(p: Parts) -> Iterator[tuple[str, bytes]]:
    yield "as zeros", _ONES + p.masked() + bytes(ICRC_SIZE)
    yield "as ones", _ONES + p.masked() + b"\xff" * ICRC_SIZE


def _left_out(p: Parts) -> Iterator[tuple[str, bytes]]:
    ip, udp = len(p.ip), len(p.udp)
    whole = p.masked()
    bare = whole[ip + udp :]
    for name, stream in (
        ("the network header", whole[ip:]),
        ("the UDP header", whole[:ip] + bare),
        ("both headers", bare),
        ("all but payload and pad behind the BTH", bare[BTH.SIZE :]),
    ):
        if name != "the UDP header" or udp:
            yield name, _ONES + stream
            yield f"{name}, and the eight ones", stream


def _lengths(p: Parts, change: int) -> Iterator[tuple[str, Parts]]:
    at = 2 if p.network == _IPV4 else 4
    ip = bytearray(p.ip)
    length = int.from_bytes(ip[at : at + 2], "big")
    ip[at : at + 2] = ((length + change) & 0xFFFF).to_bytes(2, "big")
    yield "the IP length", p.replaced(ip=bytes(ip))
    if p.udp:
        udp = bytearray(p.udp)
        length = int.from_bytes(udp[4:6], "big")
        udp[4:6] = ((length + change) & 0xFFFF).to_bytes(2, "big")
        yield "the UDP length", p.replaced(udp=bytes(udp))
        yield "both lengths", p.replaced(ip=bytes(ip), udp=bytes(udp))


def _wrong_length(p: Parts) -> Iterator[tuple[str, bytes]]:
    changes = (-4, 4, -8, 8, -20, 20, -40, 40, *range(-3, 4))
    for change in dict.fromkeys(change for change in changes if change):
        for name, parts in _lengths(p, change):
            yield f"{name} {change:+d}", _ONES + parts.masked()


def _lengths_zero(p: Parts) -> Iterator[tuple[str, bytes]]:
    at = 2 if p.network == _IPV4 else 4
    ip = p.ip[:at] + b"\0\0" + p.ip[at + 2 :]
    udp = p.udp[:4] + b"\0\0" + p.udp[6:] if p.udp else b""
    for name, parts in (
        ("the IP length", p.replaced(ip=ip)),
        ("the UDP length", p.replaced(udp=udp)),
        ("both lengths", p.replaced(ip=ip, udp=udp)),
    ):
        yield name, _ONES + parts.masked()


def _swapped(p: Parts) -> Iterator[tuple[str, bytes]]:
    at, size = (12, 4) if p.network == _IPV4 else (8, 16)
    ends = p.ip[at + size : at + 2 * size] + p.ip[at : at + size]
    ip = p.ip[:at] + ends + p.ip[at + 2 * size :]
    udp = p.udp[2:4] + p.udp[:2] + p.udp[4:]
    yield "addresses", _ONES + p.replaced(ip=ip).masked()
    if p.udp:
        yield "ports", _ONES + p.replaced(udp=udp).masked()
        yield "addresses and ports", _ONES + p.replaced(ip=ip, udp=udp).masked()


def _other_address(p: Parts) -> Iterator[tuple[str, bytes]]:
    """Addresses known from elsewhere, and those that differ in one byte."""
    at, size = (12, 4) if p.network == _IPV4 else (8, 16)
    usual = ("0.0.0.0", "127.0.0.1") if size == 4 else ("::", "::1")
    known = {*p.addresses, *map(pack_address, usual)}
    for end, name in ((at, "source"), (at + size, "destination")):
        here = p.ip[end : end + size]
        near = [
            here[:k] + bytes((value,)) + here[k + 1 :] for k in range(size) for value in range(256)
        ]
        for other in (*(each for each in known if len(each) == size), *near):
            if other != here:
                ip = p.ip[:end] + other + p.ip[end + size :]
                yield f"{name} {_show(other)}", _ONES + p.replaced(ip=ip).masked()


def _show(address: bytes) -> str:
    return ".".join(map(str, address)) if len(address) == 4 else address.hex(":", 2)


def _other_flags(p: Parts) -> Iterator[tuple[str, bytes]]:
    if p.network == _IPV4:
        for value in (0x0000, 0x4000, 0x2000, 0x8000):
            ip = p.ip[:6] + value.to_bytes(2, "big") + p.ip[8:]
            yield f"{value:#06x}", _ONES + p.replaced(ip=ip).masked()


def _other_version(p: Parts) -> Iterator[tuple[str, bytes]]:
    """RoCEv1 in place of RoCEv2, with the addresses as GIDs."""
    if p.network == _GRH:
        return
    at, size = (12, 4) if p.network == _IPV4 else (8, 16)
    gids = b"".join(
        (bytes(10) + b"\xff\xff" if size == 4 else b"") + p.ip[k : k + size]
        for k in (at, at + size)
    )
    length = (len(p.packet) + ICRC_SIZE).to_bytes(2, "big")
    grh = Parts(_GRH, b"\x60\0\0\0" + length + b"\x1b\xff" + gids, b"", p.packet, p.pad)
    yield "", _ONES + grh.masked()


#: What may go wrong with the bytes of the stream; the first row is what is right.
STREAMS: tuple[Stream, ...] = (
    Stream("", "", _right),
    Stream("unmasked", "variable fields taken as they are", _unmasked),
    Stream("masked-with-zeros", "variable fields replaced by zeros, not by ones", _zeros),
    Stream("masked-too-much", "a field masked that the ICRC covers", _more_masked),
    Stream("leading-ones", "not eight bytes of ones in place of the LRH", _ones_before),
    Stream("leading-zeros", "eight zeros in place of the LRH, not ones", _zeros_before),
    Stream("pad-left-out", "without the pad", _pad_out),
    Stream("icrc-included", "with four bytes in the place of the ICRC", _icrc_in),
    Stream("header-left-out", "without a header", _left_out),
    Stream("wrong-length", "with another length than the packet's", _wrong_length),
    Stream("length-zero", "before the lengths were filled in", _lengths_zero),
    Stream("swapped", "with source and destination exchanged", _swapped),
    Stream("changed-address", "with another address, as address translation leaves it",
           _other_address),
    Stream("changed-flags", "with another flags and fragment field", _other_flags),
    Stream("as-rocev1", "with a GRH in place of IP and UDP headers", _other_version),
)  # fmt: skip
