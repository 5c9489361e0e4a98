"""From captured numbers to live ones: QPN, PSN, R_Keys, addresses; and the ICRC that then is right.

Bytes are changed in place, so that what was odd in a captured packet (reserved bits, a wrong pad, a
reserved opcode) is as odd in the one that is sent; a wrong ICRC is wrong by the same bits.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rocemu.audit.dissect import Dissected, Icrc
from rocemu.net import RemoteRegion
from rocemu.net.advert import parse_regions
from rocemu.wire import ICRC_SIZE, Flow, psn_add, seal

__all__ = ["NumberMap", "advertised_pairs"]

_MASK64 = (1 << 64) - 1
_WORD, _QUAD = struct.Struct(">I"), struct.Struct(">Q")
_LOW24 = 0xFFFFFF


def advertised_pairs(captured: bytes, live: bytes) -> tuple[tuple[RemoteRegion, RemoteRegion], ...]:
    """Regions that the private data of both REPs name, the captured and the live one."""
    ours = {region.name: region for region in _regions(live)}
    return tuple((old, ours[old.name]) for old in _regions(captured) if old.name in ours)


def _regions(private_data: bytes) -> list[RemoteRegion]:
    regions, directory = parse_regions(private_data)
    return regions if directory is None else [*regions, directory]


@dataclass(frozen=True, slots=True)
class NumberMap:
    """How the numbers of a capture become live ones.

    An R_Key or address that the options name is mapped so; else an advertised one by its region: an
    address by the R_Key beside it, or, where that was never advertised, by the region it lies in.
    Everything else stays as it was.
    """

    dest_qp: int
    psn_offset: int
    """Added to captured PSNs."""
    regions: Sequence[tuple[RemoteRegion, RemoteRegion]] = ()
    rkeys: Mapping[int, int] = field(default_factory=dict)
    vas: Mapping[int, int] = field(default_factory=dict)
    """Captured address -> live one; the greatest that is not above an address moves it."""

    def rkey(self, rkey: int) -> int:
        if rkey in self.rkeys:
            return self.rkeys[rkey]
        return next((new.rkey for old, new in self.regions if old.rkey == rkey), rkey)

    def va(self, va: int, rkey: int) -> int:
        below = [old for old in self.vas if old <= va]
        if below:
            return va - max(below) + self.vas[max(below)] & _MASK64
        named = [pair for pair in self.regions if pair[0].rkey == rkey]
        around = [pair for pair in self.regions if 0 <= va - pair[0].va < max(1, pair[0].length)]
        for old, new in named or around:
            return va - old.va + new.va & _MASK64
        return va

    def rewrite(self, packet: Dissected, flow: Flow) -> bytes:
        """BTH to ICRC of a captured request, as ``flow`` sends it with IP ID 0."""
        start = packet.layers["bth"][0]
        data = bytearray(packet.captured.data[start : packet.layers["icrc"][0]])
        for at, value in ((4, self.dest_qp), (8, psn_add(_word(data, 8), self.psn_offset))):
            _WORD.pack_into(data, at, _word(data, at) & ~_LOW24 | value)
        for name in ("reth", "atomiceth"):
            if name in packet.layers:
                at = packet.layers[name][0] - start
                va, rkey = _QUAD.unpack_from(data, at)[0], _word(data, at + 8)
                _QUAD.pack_into(data, at, self.va(va, rkey))
                _WORD.pack_into(data, at + 8, self.rkey(rkey))
        if "ieth" in packet.layers:
            at = packet.layers["ieth"][0] - start
            _WORD.pack_into(data, at, self.rkey(_word(data, at)))
        sealed = seal(bytes(data), flow, 0)
        if packet.icrc is not Icrc.WRONG:
            return sealed
        wrong = (packet.icrc_stored or 0) ^ (packet.icrc_computed or 0)
        icrc = int.from_bytes(sealed[-ICRC_SIZE:], "big") ^ wrong
        return sealed[:-ICRC_SIZE] + icrc.to_bytes(ICRC_SIZE, "big")


def _word(data: bytearray, at: int) -> int:
    return int(_WORD.unpack_from(data, at)[0])
