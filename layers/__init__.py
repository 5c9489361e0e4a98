"""RoCEv2 layers for Scapy: build, dissect, show.

>>> from layers import *
>>> pkt = IP(dst="10.0.0.2")/UDP()/BTH(dest_qp=0x11, psn=1000)/RETH(va=0x1000, rkey=7)/Raw(b"hello")

has a right opcode, pad and ICRC.  Importing binds UDP port 4791 to :class:`BTH`, and CM MADs to
queue pair 1.  Of rocemu it needs the ground floor alone (:mod:`rocemu.wire`, :mod:`rocemu.verbs`).
"""

from layers.mad import (
    CM_DREP,
    CM_DREQ,
    CM_MRA,
    CM_REJ,
    CM_REP,
    CM_REQ,
    CM_RTU,
    IPCM,
    MAD,
)
from layers.roce import (
    AETH,
    BTH,
    DETH,
    FETH,
    IETH,
    RDETH,
    RETH,
    XRCETH,
    AtomicAckETH,
    AtomicETH,
    CNPPad,
    ImmDt,
)

__all__ = [
    "AETH",
    "BTH",
    "CM_DREP",
    "CM_DREQ",
    "CM_MRA",
    "CM_REJ",
    "CM_REP",
    "CM_REQ",
    "CM_RTU",
    "DETH",
    "FETH",
    "IETH",
    "IPCM",
    "MAD",
    "RDETH",
    "RETH",
    "XRCETH",
    "AtomicAckETH",
    "AtomicETH",
    "CNPPad",
    "ImmDt",
]
