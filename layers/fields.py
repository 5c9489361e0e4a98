"""Fields that stand at the end of the datagram though they belong to the BTH."""

from typing import Any

from scapy.fields import RawVal, XIntField, XStrField

from rocemu.wire import ICRC_SIZE, OPCODES

__all__ = ["IcrcField", "PaddingField"]


def _is_cut(pkt: Any, size: int) -> bool:
    """Whether the UDP header promises more than the ``size`` bytes that follow the BTH here."""
    udp_length = getattr(pkt.underlayer, "len", None)
    return udp_length is not None and udp_length - 8 > pkt.SIZE + size


class PaddingField(XStrField):
    """The bytes that PadCnt counts, behind the payload; None builds that many zeros.

    A PadCnt that reaches into the headers finds none.  ``post_build`` of the BTH puts them in
    place, hence :meth:`addfield` adds nothing.
    """

    def addfield(self, pkt: Any, s: bytes, val: Any) -> bytes:
        return s

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, bytes]:
        info = OPCODES.get(pkt.opcode)
        end = len(s) - ICRC_SIZE
        start = end - pkt.pad
        if _is_cut(pkt, len(s)) or start < (info.header_bytes if info else 0):
            return s, b""
        return s[:start] + s[end:], s[start:end]


class IcrcField(XIntField):
    """The last four bytes, read as a big-endian number (as Wireshark shows them).

    None builds the right ICRC; ``RawVal(b"")`` builds none, and is what a packet that a capture cut
    short has.
    """

    def addfield(self, pkt: Any, s: bytes, val: Any) -> bytes:
        return s

    def getfield(self, pkt: Any, s: bytes) -> tuple[bytes, Any]:
        if _is_cut(pkt, len(s) + len(pkt.padding)):
            return s, RawVal(b"")
        return s[:-ICRC_SIZE], int.from_bytes(s[-ICRC_SIZE:], "big")
