"""Scapy layers of the connection manager: the MAD header and what travels in it.

``BTH(dest_qp=1)/DETH()/MAD()/CM_REQ(service_id=0x1061c06)/IPCM(source="10.0.0.1")/Raw(b"hello")``
is a whole packet: the fields of each message come from the table in :mod:`rocemu.wire.mad`, private
data is the payload, and a MAD is filled up with zeros to its 256 bytes on build.
"""

from typing import Any

from scapy.config import conf
from scapy.fields import BitEnumField, BitField, IP6Field, StrFixedLenField, XBitField
from scapy.packet import Packet, bind_layers

from layers.roce import BTH, DETH
from rocemu.verbs import MTU, mtu_bytes
from rocemu.wire import (
    GSI_QKEY,
    GSI_QPN,
    MAD_SIZE,
    BitFields,
    CmAttribute,
    CmDrep,
    CmDreq,
    CmMra,
    CmRej,
    CmRep,
    CmReq,
    CmRtu,
    IpCmHeader,
    MadHeader,
    Op,
    RejReason,
    Transport,
    layout,
)

__all__ = ["CM_DREP", "CM_DREQ", "CM_MRA", "CM_REJ", "CM_REP", "CM_REQ", "CM_RTU", "IPCM", "MAD"]

_BODY_SIZE = MAD_SIZE - MadHeader.SIZE


class AddressField(IP6Field):
    """Sixteen bytes that hold an IPv6 address, or an IPv4 address behind ``prefix``."""

    __slots__ = ["prefix"]

    def __init__(self, name: str, default: str, prefix: str) -> None:
        self.prefix = prefix
        super().__init__(name, default)

    def h2i(self, pkt: Any, x: Any) -> Any:
        if isinstance(x, str) and ":" not in x:
            x = self.prefix + x
        return super().h2i(pkt, x)


_NAMES: dict[str, dict[int, str]] = {
    "attribute_id": {value: value.name for value in CmAttribute},
    "transport_type": {0: "RC", 1: "UC", 2: "RD", 3: "extended"},
    "path_mtu": {mtu.value: str(mtu_bytes(mtu)) for mtu in MTU},
    "message": {0: "REQ", 1: "REP", 2: "other"},
    "reason": {value: value.name.lower().replace("_", " ") for value in RejReason},
}
_HEX = ("_id", "_guid", "_key", "_qkey", "_qpn", "_eecn", "_psn", "_lid", "_label", "_modifier")


def _fields_of(cls: type[BitFields], addresses: str = "") -> list[Any]:
    """Scapy fields of a table; reserved bits get fields too, private data is left to the payload.

    ``addresses`` is the prefix of IPv4 addresses in 16-byte fields (see :class:`AddressField`).
    """
    made: list[Any] = []
    defaults, end = cls(), 0
    for name, start, bits, kind in layout(cls):
        if start > end:
            made.append(XBitField(f"reserved{end // 8}", 0, start - end))
        end = start + bits
        default = getattr(defaults, name)
        if name == "private_data":
            return made
        if kind is bytes and bits == 128:
            made.append(AddressField(name, "::", addresses))
        elif kind is bytes:
            made.append(StrFixedLenField(name, default, bits // 8))
        elif name in _NAMES:
            made.append(BitEnumField(name, default, bits, _NAMES[name]))
        elif name.endswith(_HEX):
            made.append(XBitField(name, default, bits))
        else:
            made.append(BitField(name, int(default), bits))
    if end < cls.SIZE * 8:
        made.append(XBitField(f"reserved{end // 8}", 0, cls.SIZE * 8 - end))
    return made


class MAD(Packet):
    """Management datagram header ([IBTA] 13.4.2): 24 bytes of the 256."""

    name = "MAD"
    fields_desc = _fields_of(MadHeader)

    @classmethod
    def dispatch_hook(cls, _pkt: bytes | None = None, *args: Any, **kargs: Any) -> Any:
        """Behind a DETH these bytes are a MAD only in a SEND Only to QP 1."""
        bth = getattr(kargs.get("_underlayer"), "underlayer", None)
        if not isinstance(bth, BTH):
            return cls
        to_gsi = bth.dest_qp == GSI_QPN and bth.opcode == Transport.UD | Op.SEND_ONLY
        return cls if to_gsi else conf.raw_layer

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        return pkt + pay.ljust(_BODY_SIZE, b"\0")

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes]:
        return s[:_BODY_SIZE], s[_BODY_SIZE:]


class CM_REQ(Packet):
    """Request for communication ([IBTA] 12.6.5)."""

    name = "CM REQ"
    fields_desc = _fields_of(CmReq, "::ffff:")

    def guess_payload_class(self, payload: bytes) -> Any:
        """Services of the IP CM service's range begin their private data with its header."""
        if self.service_id >> 24 == 1:
            return IPCM
        return super().guess_payload_class(payload)


class CM_MRA(Packet):
    """Message received, the answer takes longer ([IBTA] 12.6.6)."""

    name = "CM MRA"
    fields_desc = _fields_of(CmMra)


class CM_REJ(Packet):
    """Reject ([IBTA] 12.6.7)."""

    name = "CM REJ"
    fields_desc = _fields_of(CmRej)


class CM_REP(Packet):
    """Reply to a REQ ([IBTA] 12.6.8)."""

    name = "CM REP"
    fields_desc = _fields_of(CmRep)


class CM_RTU(Packet):
    """Ready to use ([IBTA] 12.6.9)."""

    name = "CM RTU"
    fields_desc = _fields_of(CmRtu)


class CM_DREQ(Packet):
    """Request to disconnect ([IBTA] 12.6.10)."""

    name = "CM DREQ"
    fields_desc = _fields_of(CmDreq)


class CM_DREP(Packet):
    """Answer to a DREQ ([IBTA] 12.6.11)."""

    name = "CM DREP"
    fields_desc = _fields_of(CmDrep)


class IPCM(Packet):
    """RDMA IP CM header in front of a REQ's private data ([IBTA] A11)."""

    name = "RDMA IP CM"
    fields_desc = _fields_of(IpCmHeader, "::")


bind_layers(DETH, MAD, qkey=GSI_QKEY, source_qp=GSI_QPN)
for _cls, _attribute in (
    (CM_REQ, CmAttribute.REQ),
    (CM_MRA, CmAttribute.MRA),
    (CM_REJ, CmAttribute.REJ),
    (CM_REP, CmAttribute.REP),
    (CM_RTU, CmAttribute.RTU),
    (CM_DREQ, CmAttribute.DREQ),
    (CM_DREP, CmAttribute.DREP),
):
    bind_layers(MAD, _cls, mgmt_class=7, attribute_id=int(_attribute))
