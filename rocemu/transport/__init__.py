"""The sans-IO RC transport: a :class:`Device` and what belongs to it."""

from rocemu.transport.attributes import AddressVector, QPAttr, QPCap, QPInitAttr
from rocemu.transport.cm import CmConnection, ConnectionManager
from rocemu.transport.cq import CompletionQueue
from rocemu.transport.datagram import Datagram
from rocemu.transport.device import Device
from rocemu.transport.errors import QPError
from rocemu.transport.events import (
    AsyncEvent,
    CompletionEvent,
    ConnectFailed,
    ConnectRequest,
    Disconnected,
    Drop,
    Established,
    Event,
    QPStateChange,
    Rejected,
    SRQEvent,
    Violation,
)
from rocemu.transport.look import PacketLook
from rocemu.transport.profile import PROFILES, SOFT_ROCE, SPEC, Profile
from rocemu.transport.qp import QueuePair
from rocemu.transport.responder import AckPolicy
from rocemu.transport.srq import SharedReceiveQueue
from rocemu.transport.work import SGE, WC, BindMW, RecvWR, RegMR, SendWR

__all__ = [
    "PROFILES",
    "SGE",
    "SOFT_ROCE",
    "SPEC",
    "WC",
    "AckPolicy",
    "AddressVector",
    "AsyncEvent",
    "BindMW",
    "CmConnection",
    "CompletionEvent",
    "CompletionQueue",
    "ConnectFailed",
    "ConnectRequest",
    "ConnectionManager",
    "Datagram",
    "Device",
    "Disconnected",
    "Drop",
    "Established",
    "Event",
    "PacketLook",
    "Profile",
    "QPAttr",
    "QPCap",
    "QPError",
    "QPInitAttr",
    "QPStateChange",
    "QueuePair",
    "RecvWR",
    "RegMR",
    "Rejected",
    "SRQEvent",
    "SendWR",
    "SharedReceiveQueue",
    "Violation",
]
