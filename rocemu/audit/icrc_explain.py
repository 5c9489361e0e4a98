"""One ICRC explained: the masked bytes, the CRC, what is stored, and how the two come to differ."""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from isal.isal_zlib import crc32

from rocemu.audit.icrc_mistakes import STREAMS, Parts
from rocemu.audit.icrc_results import RESULTS
from rocemu.capture import CapturedPacket, Network, locate
from rocemu.wire import BTH, ICRC_SIZE, OPCODES

__all__ = ["Cause", "ExplainError", "Explanation", "explain", "take_apart"]

_SLOW = ("crc32c", "not-reflected")  # results computed byte by byte: of the right stream alone


class ExplainError(ValueError):
    """A packet without an ICRC to explain; ``str()`` is a sentence."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A mistake that gives exactly the stored ICRC."""

    name: str
    """Of the table of mistakes, two joined by ``+``; or ``bit-flip``, ``byte-change``,
    ``icrc-bit-flip``, ``not-written``, ``changed-port``, ``changed-ip-id``."""
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What went into the CRC and what came of it."""

    sections: tuple[tuple[str, bytes], ...]
    """Name and masked bytes of the eight ones, each header, payload and pad, in order."""
    masked: tuple[frozenset[int], ...]
    """For each section the offsets of the bytes that are masked, at least in part."""
    crc: int
    stored: bytes
    causes: tuple[Cause, ...]
    """Empty when the ICRC is right, or nothing usual explains it."""

    @property
    def computed(self) -> bytes:
        """The right ICRC, as it is written."""
        return self.crc.to_bytes(4, "little")

    @property
    def right(self) -> bool:
        return self.computed == self.stored


def take_apart(packet: CapturedPacket, addresses: Iterable[bytes] = ()) -> tuple[Parts, bytes]:
    """Headers and BTH to pad of a captured packet, and its stored ICRC; raises ExplainError."""
    found = locate(packet.linktype, packet.data)
    if found.network not in (Network.IPV4, Network.IPV6, Network.GRH):
        raise ExplainError(f"{found.network}: no RoCE packet")
    if found.payload is None:
        raise ExplainError(f"{found.network}, but no whole UDP datagram")
    if found.end > len(packet.data):
        raise ExplainError(
            f"the capture has {len(packet.data)} bytes of it, the ICRC ends at {found.end}"
        )
    if found.end - found.payload < BTH.SIZE + ICRC_SIZE:
        raise ExplainError(
            f"{found.end - found.payload} bytes behind the headers, a BTH with its ICRC is 16"
        )
    end = found.end - ICRC_SIZE
    udp = found.payload if found.udp is None else found.udp
    data = packet.data
    parts = Parts(
        str(found.network),
        data[found.network_at : udp],
        data[udp : found.payload],
        data[found.payload : end],
        data[found.payload + 1] >> 4 & 3,
        tuple(addresses),
    )
    return parts, data[end : found.end]


def explain(parts: Parts, stored: bytes) -> Explanation:
    """The ICRC of a packet, and if ``stored`` is another one, what gives exactly that."""
    stream = b"\xff" * 8 + parts.masked()
    crc = crc32(stream)
    wrong = crc.to_bytes(4, "little") != stored
    sections, masked = _sections(parts, stream)
    return Explanation(
        sections, masked, crc, stored, tuple(_causes(parts, stream, stored)) if wrong else ()
    )


def _sections(
    parts: Parts, stream: bytes
) -> tuple[tuple[tuple[str, bytes], ...], tuple[frozenset[int], ...]]:
    info = OPCODES.get(parts.packet[0])
    headers = BTH.SIZE + (info.header_bytes if info else 0)
    names = " ".join(info.headers) if info else ""
    headers = min(headers, len(parts.packet))
    pad = min(parts.pad, len(parts.packet) - headers)
    sizes = (
        ("in place of the LRH", 8),
        (parts.network if parts.udp else "GRH", len(parts.ip)),
        ("UDP", len(parts.udp)),
        ("BTH", BTH.SIZE),
        (names, headers - BTH.SIZE),
        ("payload", len(parts.packet) - headers - pad),
        ("pad", pad),
    )
    whole = bytes(8) + parts.ip + parts.udp + parts.packet
    zeros = b"\xff" * 8 + parts.masked(value=0)
    sections, masked, at = [], [], 0
    for name, size in sizes:
        if size:
            sections.append((name, stream[at : at + size]))
            changed = {k for k in range(size) if stream[at + k] != zeros[at + k]}
            masked.append(frozenset(range(8)) if not at else frozenset(changed))
            at += size
    assert at == len(whole)
    return tuple(sections), tuple(masked)


def _causes(parts: Parts, stream: bytes, stored: bytes) -> Iterator[Cause]:
    """The likeliest first: mistakes of the table, then what may have changed on the way."""
    if stored == bytes(ICRC_SIZE):
        yield Cause("not-written", "the place of the ICRC was never filled in")
        return
    found = False
    for name, meaning, make in STREAMS:
        for detail, data in make(parts):
            for result, result_meaning, compute in RESULTS:
                if name and result.startswith(_SLOW):
                    continue
                if compute(data) == stored:
                    texts = [f"{meaning}: {detail}" if detail else meaning, result_meaning]
                    yield Cause(
                        "+".join(filter(None, (name, result))), ", ".join(filter(None, texts))
                    )
                    found = True
                    break
            if found:
                return
    difference = crc32(stream) ^ int.from_bytes(stored, "little")
    if difference.bit_count() == 1:
        bit = difference.bit_length() - 1
        yield Cause("icrc-bit-flip", f"bit {bit & 7} of byte {bit // 8} of the ICRC itself flipped")
        return
    changes = list(_changes(parts, stream, difference))
    yield from changes
    if not changes:
        yield from _solved(parts, stream, difference)


def _changes(parts: Parts, stream: bytes, difference: int) -> Iterator[Cause]:
    """A single byte of the packet, or bit of it, that makes the difference: of a million changes
    of 4,096 bytes chance makes one in 4,000 packets fit.

    Going back from the end, a bit's effect on the CRC is that of the bit behind it moved through
    one more zero; the register is moved back instead, until nothing is left but its last byte.
    """
    syndrome = difference
    for at in range(len(stream) - 1, 7, -1):
        syndrome = _back(syndrome)
        if syndrome < 256:
            where, was = (
                _place(parts, at - 8),
                f"{stream[at]:#04x} was {stream[at] ^ syndrome:#04x}",
            )
            if syndrome.bit_count() == 1:
                bit = syndrome.bit_length() - 1
                yield Cause("bit-flip", f"bit {bit} of {where} flipped: {was}")
            else:
                yield Cause("byte-change", f"{where} changed: {was}")


_TABLE = [crc32(bytes((value,)), 0xFFFFFFFF) ^ 0xFFFFFFFF for value in range(256)]
_BACK = {entry >> 24: (entry, value) for value, entry in enumerate(_TABLE)}  # all 256 differ


def _back(register: int) -> int:
    """The CRC register before a zero byte went through it."""
    entry, value = _BACK[register >> 24]
    return (register ^ entry) << 8 & 0xFFFFFFFF | value


def _place(parts: Parts, at: int) -> str:
    for name, size in (("the network header", len(parts.ip)), ("the UDP header", len(parts.udp))):
        if at < size:
            return f"byte {at} of {name}"
        at -= size
    info = OPCODES.get(parts.packet[0])
    headers = BTH.SIZE + (info.header_bytes if info else 0)
    if at < BTH.SIZE:
        return f"byte {at} of the BTH"
    if at < headers:
        return f"byte {at - BTH.SIZE} behind the BTH"
    return f"byte {at - headers} of payload and pad"


def _solved(parts: Parts, stream: bytes, difference: int) -> Iterator[Cause]:
    """Sixteen bits that fit: a wrong ICRC has such once in 65,536, so this is weak evidence."""
    at = 8 + len(parts.ip)
    fields = [("changed-port", "UDP source port", at)] if parts.udp else []
    if parts.network == "IPv4":
        fields.insert(0, ("changed-ip-id", "IP ID", 8 + 4))
    for name, what, offset in fields:
        change = _solve(difference, len(stream) - offset - 2)
        if change is not None:
            (value,) = struct.unpack_from(">H", stream, offset)
            yield Cause(
                name,
                f"right for {what} {value ^ change}, not {value} (chance finds one in 65,536 too)",
            )


def _solve(difference: int, behind: int) -> int | None:
    """The change of 16 bits, followed by so many bytes, that makes the difference."""
    register = difference
    for _ in range(behind + 2):
        register = _back(register)
    # what is left is the change itself, in the first two bytes that go in
    return int.from_bytes(register.to_bytes(4, "little")[:2], "big") if register < 1 << 16 else None
