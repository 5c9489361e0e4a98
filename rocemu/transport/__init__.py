"""The sans-IO RC transport: a :class:`Device` and what belongs to it."""

from rocemu.transport.attributes import AddressVector, QPAttr, QPCap, QPInitAttr
from rocemu.transport.cm import CmConnection, ConnectionManager
from rocemu.transport.cq import CompletionQueue
from rocemu.transport.datagram import Datagram
from rocemu.transport.device import Device
from rocemu.transport.errors import QPError
from rocemu.transport.events import (
    AsyncEvent,
    ConnectFailed,
    ConnectRequest,
    Disconnected,
    Drop,
    Established,
    Event,
    QPStateChange,
    Rejected,
    Violation,
)
from rocemu.transport.qp import QueuePair
from rocemu.transport.work import SGE, WC, RecvWR, SendWR

__all__ = [
    "SGE",
    "WC",
    "AddressVector",
    "AsyncEvent",
    "CmConnection",
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
    "QPAttr",
    "QPCap",
    "QPError",
    "QPInitAttr",
    "QPStateChange",
    "QueuePair",
    "RecvWR",
    "Rejected",
    "SendWR",
    "Violation",
]
