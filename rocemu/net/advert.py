"""How a responder tells what it exposes: regions in the private data of its REP.

Private data is 196 bytes, room for about seven regions.  Layout, big-endian::

    magic "RMR1" (4)   count (2)   flags (2)   count times a region:
    va (8)   length (8)   rkey (4)   access (2)   name length (1)   name (UTF-8)

``access`` holds IBV_ACCESS_* bits.  With flag bit 0 the last region is the *directory*: its memory,
readable from afar, holds the regions that found no room, in the same layout.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from rocemu.protection import MemoryRegion
from rocemu.verbs import AccessFlags

__all__ = [
    "DIRECTORY_NAME",
    "LARGEST_DIRECTORY",
    "RemoteRegion",
    "pack_regions",
    "parse_regions",
    "without_room",
]

DIRECTORY_NAME = "(directory)"
_MAGIC = b"RMR1"
_HEAD = struct.Struct(">4sHH")
_REGION = struct.Struct(">QQIHB")
_HAS_DIRECTORY = 1
_REP_PRIVATE = 196
_DIRECTORY_SIZE = _REGION.size + len(DIRECTORY_NAME)
#: All regions that ``count`` can tell, with names of the greatest length.
LARGEST_DIRECTORY = _HEAD.size + 0xFFFF * (_REGION.size + 0xFF)


class RemoteRegion(NamedTuple):
    """A region of the peer: all that is needed to reach it."""

    name: str
    va: int
    length: int
    rkey: int
    access: AccessFlags

    @classmethod
    def of(cls, mr: MemoryRegion) -> Self:
        """What the owner of ``mr`` tells others."""
        return cls(mr.name, mr.va, mr.length, mr.rkey, mr.access)

    def _pack(self) -> bytes:
        name = self.name.encode()
        fields = self.va, self.length, self.rkey, int(self.access) & 0xFFFF, len(name)
        return _REGION.pack(*fields) + name


def pack_regions(regions: Iterable[RemoteRegion], directory: RemoteRegion | None = None) -> bytes:
    """A list of regions, the directory last."""
    listed = [*regions, directory] if directory else list(regions)
    flags = _HAS_DIRECTORY if directory else 0
    return _HEAD.pack(_MAGIC, len(listed), flags) + b"".join(r._pack() for r in listed)


def without_room(regions: Sequence[RemoteRegion]) -> int:
    """How many of the last regions must go to a directory for the rest to fit a REP."""
    if len(pack_regions(regions)) <= _REP_PRIVATE:
        return 0
    room, kept = _REP_PRIVATE - _HEAD.size - _DIRECTORY_SIZE, 0
    for region in regions:
        room -= len(region._pack())
        if room < 0:
            break
        kept += 1
    return len(regions) - kept


def parse_regions(data: bytes) -> tuple[list[RemoteRegion], RemoteRegion | None]:
    """The regions in private data or in a directory, and the directory that the list ends with.

    Data that is no such list, as from a peer that is not rocemu, gives none.
    """
    regions: list[RemoteRegion] = []
    try:
        magic, count, flags = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            return [], None
        offset = _HEAD.size
        for _ in range(count):
            va, length, rkey, access, size = _REGION.unpack_from(data, offset)
            offset += _REGION.size
            name = data[offset : offset + size].decode()
            offset += size
            if offset > len(data):
                return [], None
            regions.append(RemoteRegion(name, va, length, rkey, AccessFlags(access)))
    except (struct.error, UnicodeDecodeError):
        return [], None
    directory = regions.pop() if flags & _HAS_DIRECTORY and regions else None
    return regions, directory
