"""What a responder fault does ([IBTA] "Responder Error Behavior Summary", RC column).

Class C and A faults end the queue pair.  A fault that can be tied to a receive work request
completes that request in error; any other raises an asynchronous event: one of the two, never
both ([IBTA] C9-222.1.1).
"""

from enum import Enum
from typing import NamedTuple

from rocemu.verbs import AsyncEventType, WCStatus
from rocemu.wire import NakCode

__all__ = ["FAULTS", "Fault", "FaultRow"]


class Fault(Enum):
    """Rows of the summary that RC can reach."""

    RESERVED_OPCODE = "reserved or unsupported opcode"
    OPCODE_SEQUENCE = "opcode out of sequence"
    NOT_ENABLED = "operation not enabled on the queue pair"
    TOO_MANY_READS = "more READs and atomics than max_dest_rd_atomic"
    LENGTH = "length error"
    MISALIGNED_ATOMIC = "atomic address not a multiple of 8"
    REMOTE_ACCESS = "R_Key violation"
    MESSAGE_TOO_LONG = "SEND longer than its receive"
    LOCAL_RECEIVE = "receive buffer may not be written"
    INVALIDATE = "R_Key of a SEND with Invalidate cannot be invalidated"
    """Class J: neither ACK nor NAK, the requester times out."""
    RECEIVER_NOT_READY = "no receive is posted"
    """Class B: an RNR NAK, nothing else changes, no row in :data:`FAULTS`."""


class FaultRow(NamedTuple):
    """NAK code if any, then what the receive completes with, or the event where there is none."""

    nak: NakCode | None
    receive_status: WCStatus
    event: AsyncEventType | None


_INVALID = NakCode.INVALID_REQUEST
_REQ_ERR = AsyncEventType.IBV_EVENT_QP_REQ_ERR
_INV_REQ = WCStatus.IBV_WC_REM_INV_REQ_ERR

FAULTS: dict[Fault, FaultRow] = {
    Fault.RESERVED_OPCODE: FaultRow(_INVALID, _INV_REQ, _REQ_ERR),
    Fault.OPCODE_SEQUENCE: FaultRow(_INVALID, _INV_REQ, _REQ_ERR),
    Fault.NOT_ENABLED: FaultRow(_INVALID, _INV_REQ, _REQ_ERR),
    Fault.TOO_MANY_READS: FaultRow(_INVALID, _INV_REQ, _REQ_ERR),
    Fault.LENGTH: FaultRow(_INVALID, WCStatus.IBV_WC_LOC_LEN_ERR, _REQ_ERR),
    Fault.MESSAGE_TOO_LONG: FaultRow(_INVALID, WCStatus.IBV_WC_LOC_LEN_ERR, _REQ_ERR),
    Fault.MISALIGNED_ATOMIC: FaultRow(_INVALID, _INV_REQ, _REQ_ERR),
    Fault.REMOTE_ACCESS: FaultRow(
        NakCode.REMOTE_ACCESS_ERROR,
        WCStatus.IBV_WC_LOC_ACCESS_ERR,
        AsyncEventType.IBV_EVENT_QP_ACCESS_ERR,
    ),
    # The event of this class is not settled by any source we could read; a receive is always there.
    Fault.LOCAL_RECEIVE: FaultRow(
        NakCode.REMOTE_OPERATIONAL_ERROR,
        WCStatus.IBV_WC_LOC_PROT_ERR,
        AsyncEventType.IBV_EVENT_QP_FATAL,
    ),
    # Verbs has no status for it; the kernel's is the nearest.  A receive is always there.
    Fault.INVALIDATE: FaultRow(None, _INV_REQ, AsyncEventType.IBV_EVENT_QP_ACCESS_ERR),
}
