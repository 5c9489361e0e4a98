"""RoCEv2 layers for Scapy: build, dissect, show.

>>> from layers import *
>>> pkt = IP(dst="10.0.0.2")/UDP()/BTH(dest_qp=0x11, psn=1000)/RETH(va=0x1000, rkey=7)/Raw(b"hello")

has a right opcode, pad and ICRC.  Importing binds UDP port 4791 to :class:`BTH`.  Needs nothing of
rocemu but :mod:`rocemu.wire`.
"""

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
    "DETH",
    "FETH",
    "IETH",
    "RDETH",
    "RETH",
    "XRCETH",
    "AtomicAckETH",
    "AtomicETH",
    "CNPPad",
    "ImmDt",
]
