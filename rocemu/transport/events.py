"""What ``Device.next_event()`` gives: everything that happens and is no completion."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocemu.protection import Verdict
from rocemu.transport.datagram import Datagram
from rocemu.verbs import AsyncEventType, QPState
from rocemu.wire import BTH

if TYPE_CHECKING:
    from rocemu.transport.cm import CmConnection
    from rocemu.transport.cq import CompletionQueue

__all__ = [
    "AsyncEvent",
    "CompletionEvent",
    "ConnectFailed",
    "ConnectRequest",
    "Disconnected",
    "Drop",
    "Established",
    "Event",
    "QPStateChange",
    "Rejected",
    "SRQEvent",
    "Violation",
]


@dataclass(frozen=True, slots=True)
class AsyncEvent:
    """An affiliated asynchronous event: IBV_EVENT_* on a queue pair."""

    type: AsyncEventType
    qp_num: int


@dataclass(frozen=True, slots=True)
class SRQEvent:
    """An affiliated asynchronous event on a shared receive queue."""

    type: AsyncEventType
    srq_num: int


@dataclass(frozen=True, slots=True)
class CompletionEvent:
    """A completion came on a queue that asked to be told (``ibv_get_cq_event``)."""

    cq: "CompletionQueue"


@dataclass(frozen=True, slots=True)
class QPStateChange:
    """A queue pair moved, by a modify or by a fault."""

    qp_num: int
    old: QPState
    new: QPState


@dataclass(frozen=True, slots=True)
class Violation:
    """The protection engine refused an access.

    ``remote``: a request of the peer drew (or would draw) a NAK; ``datagram`` is that request.
    ``local``: a work request of our own, or a receive buffer, named memory that it may not touch.
    """

    side: str
    verdict: Verdict
    qp_num: int
    datagram: Datagram | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """A datagram was discarded without an answer; ``reason`` is the counter that went up."""

    reason: str
    detail: str
    datagram: Datagram
    bth: BTH | None = None


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A REQ came for a port that is listened on: accept or reject it."""

    connection: "CmConnection"


@dataclass(frozen=True, slots=True)
class Established:
    """Both sides are ready (RTU, or the first packet in its place; on the active side, REP)."""

    connection: "CmConnection"


@dataclass(frozen=True, slots=True)
class Rejected:
    """The peer sent REJ to our REQ (or REP)."""

    connection: "CmConnection"
    reason: int
    private_data: bytes


@dataclass(frozen=True, slots=True)
class Disconnected:
    """DREQ or DREP came, or DREQ was never answered; fires once a connection."""

    connection: "CmConnection"


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """Nobody answered our REQ; ``why`` is a sentence with address and port."""

    connection: "CmConnection"
    why: str


Event = (
    AsyncEvent
    | SRQEvent
    | CompletionEvent
    | QPStateChange
    | Violation
    | Drop
    | ConnectRequest
    | Established
    | Rejected
    | Disconnected
    | ConnectFailed
)
