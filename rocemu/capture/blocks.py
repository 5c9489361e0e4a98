"""Blocks and options of pcapng, what reader and writer share ([draft-ietf-opsawg-pcapng])."""

import struct
from collections.abc import Iterable
from enum import IntEnum

__all__ = [
    "BYTE_ORDERS",
    "BYTE_ORDER_MAGIC",
    "EPB_FLAGS",
    "IF_DESCRIPTION",
    "IF_NAME",
    "IF_OS",
    "IF_TSOFFSET",
    "IF_TSRESOL",
    "OPT_COMMENT",
    "OPT_ENDOFOPT",
    "SHB_USERAPPL",
    "Block",
    "pack_block",
    "pack_options",
    "padded",
    "text_option",
    "unpack_options",
]

#: The section header's number that tells the section's byte order.
BYTE_ORDER_MAGIC = 0x1A2B3C4D
#: Its bytes -> struct's sign for that order.
BYTE_ORDERS = {struct.pack(order + "I", BYTE_ORDER_MAGIC): order for order in "<>"}

# Option codes by the draft's names; the same number means different things in different blocks.
OPT_ENDOFOPT = 0
OPT_COMMENT = 1
SHB_USERAPPL = 4
IF_NAME = 2
IF_DESCRIPTION = 3
IF_TSRESOL = 9
IF_OS = 12
IF_TSOFFSET = 14
EPB_FLAGS = 2


class Block(IntEnum):
    """Block types that are understood; all others are skipped."""

    INTERFACE = 0x00000001
    PACKET = 0x00000002
    """Obsolete, from older tools."""
    SIMPLE_PACKET = 0x00000003
    ENHANCED_PACKET = 0x00000006
    SECTION_HEADER = 0x0A0D0D0A


def padded(size: int) -> int:
    """``size`` rounded up to the 32 bits that everything in the format is aligned to."""
    return (size + 3) & ~3


def text_option(code: int, text: str) -> tuple[int, bytes]:
    """An option with text, cut to what its 16-bit length can say."""
    value = text.encode("utf-8", "replace")
    if len(value) > 0xFFFF:
        value = value[:0xFFFF].decode("utf-8", "ignore").encode()
    return code, value


def pack_options(options: Iterable[tuple[int, bytes]]) -> bytes:
    """Little-endian options (code, value) with the end mark; nothing at all for no options."""
    parts = [
        struct.pack("<HH", code, len(value)) + value.ljust(padded(len(value)), b"\0")
        for code, value in options
    ]
    return b"".join([*parts, bytes(4)]) if parts else b""


def pack_block(kind: Block, body: bytes) -> bytes:
    """A little-endian block around ``body``, whose length is a multiple of 4."""
    size = len(body) + 12
    return struct.pack("<II", kind, size) + body + struct.pack("<I", size)


def unpack_options(data: bytes, order: str) -> tuple[list[tuple[int, bytes]], bool]:
    """Options up to the end mark, and whether all fitted; what does not fit is left out."""
    options: list[tuple[int, bytes]] = []
    header = struct.Struct(order + "HH")
    at = 0
    while at + header.size <= len(data):
        code, size = header.unpack_from(data, at)
        if code == OPT_ENDOFOPT:
            break
        at += header.size
        if at + size > len(data):
            return options, False
        options.append((code, data[at : at + size]))
        at += padded(size)
    return options, True
