"""The states of an RC connection and what moves it, as a table ([IBTA] 12.9.5 to 12.9.8)."""

from enum import Enum, auto
from typing import NamedTuple

__all__ = ["TRANSITIONS", "CmAction", "CmInput", "CmState", "Step"]


class CmState(Enum):
    """Where a connection stands."""

    IDLE = auto()
    REQ_SENT = auto()
    """Active side: waiting for REP."""
    REQ_RCVD = auto()
    """Passive side: waiting for the application to accept or reject."""
    REP_SENT = auto()
    """Passive side: waiting for RTU, or for the first packet in its place."""
    ESTABLISHED = auto()
    DREQ_SENT = auto()
    REJ_SENT = auto()
    """The application rejected; remembered so that a repeated REQ gets the same REJ."""
    TIMEWAIT = auto()
    """Over; remembered so that late messages are known for what they are."""
    CLOSED = auto()
    """Over and forgotten."""


class CmInput(Enum):
    """What may happen to a connection."""

    CONNECT = auto()
    ACCEPT = auto()
    REJECT = auto()
    DISCONNECT = auto()
    REQ = auto()
    REP = auto()
    RTU = auto()
    REJ = auto()
    STALE = auto()
    """REJ with reason stale connection; once established, a late copy of one is no REJ."""
    MRA = auto()
    DREQ = auto()
    DREP = auto()
    COMM_EST = auto()
    """The queue pair got a packet of its peer's."""
    TIMEOUT = auto()
    """No answer in time, and tries are left."""
    EXHAUSTED = auto()
    """No answer in time, and no try is left; in the last states, they are over."""
    UNREACHABLE = auto()
    """No process has UDP port 4791 at the peer's address."""


class CmAction(Enum):
    """What is done: a method of the connection manager has the same name."""

    SEND_AND_WAIT = auto()
    """Send a message that must be answered, again and again until it is."""
    SEND = auto()
    RESEND = auto()
    """Send the last message once more."""
    OFFER = auto()
    """Tell the application that a REQ came."""
    WORK_ON = auto()
    """MRA: the application has not decided yet."""
    WAIT = auto()
    """The peer's MRA asks for time."""
    COMPLETE = auto()
    """Queue pair to RTS, then RTU."""
    ESTABLISH = auto()
    NOTE_STALE = auto()
    """The peer is clearing an older connection of our queue pair away: try on."""
    DOUBT = auto()
    """A REQ for what is established: a late copy, or the peer lost its memory."""
    REFUSE_REP = auto()
    REJECTED = auto()
    FAIL = auto()
    FAIL_UNREACHABLE = auto()
    CANCEL = auto()
    SEND_DREQ = auto()
    ANSWER_DREQ = auto()
    LEAVE = auto()


class Step(NamedTuple):
    """What is done, and the state afterwards (unless the action found otherwise)."""

    action: CmAction | None
    state: CmState


_S, _I, _A = CmState, CmInput, CmAction

#: A pair that is not a key changes nothing: a late or repeated message, counted as ``late``.  Only
#: a DREQ is answered in every state, known or not.
TRANSITIONS: dict[tuple[CmState, CmInput], Step] = {
    # Active side
    (_S.IDLE, _I.CONNECT): Step(_A.SEND_AND_WAIT, _S.REQ_SENT),
    (_S.REQ_SENT, _I.REP): Step(_A.COMPLETE, _S.ESTABLISHED),
    (_S.REQ_SENT, _I.MRA): Step(_A.WAIT, _S.REQ_SENT),
    (_S.REQ_SENT, _I.REJ): Step(_A.REJECTED, _S.TIMEWAIT),
    (_S.REQ_SENT, _I.STALE): Step(_A.NOTE_STALE, _S.REQ_SENT),
    (_S.REQ_SENT, _I.TIMEOUT): Step(_A.RESEND, _S.REQ_SENT),
    (_S.REQ_SENT, _I.EXHAUSTED): Step(_A.FAIL, _S.TIMEWAIT),
    (_S.REQ_SENT, _I.UNREACHABLE): Step(_A.FAIL_UNREACHABLE, _S.CLOSED),
    (_S.REQ_SENT, _I.DISCONNECT): Step(_A.CANCEL, _S.TIMEWAIT),
    # Passive side
    (_S.IDLE, _I.REQ): Step(_A.OFFER, _S.REQ_RCVD),
    (_S.REQ_RCVD, _I.REQ): Step(_A.WORK_ON, _S.REQ_RCVD),
    (_S.REQ_RCVD, _I.ACCEPT): Step(_A.SEND_AND_WAIT, _S.REP_SENT),
    (_S.REQ_RCVD, _I.REJECT): Step(_A.SEND, _S.REJ_SENT),
    (_S.REQ_RCVD, _I.DISCONNECT): Step(_A.CANCEL, _S.REJ_SENT),
    (_S.REQ_RCVD, _I.REJ): Step(_A.REJECTED, _S.TIMEWAIT),
    (_S.REJ_SENT, _I.REQ): Step(_A.RESEND, _S.REJ_SENT),
    (_S.REJ_SENT, _I.EXHAUSTED): Step(None, _S.CLOSED),
    (_S.REP_SENT, _I.RTU): Step(_A.ESTABLISH, _S.ESTABLISHED),
    (_S.REP_SENT, _I.COMM_EST): Step(_A.ESTABLISH, _S.ESTABLISHED),
    (_S.REP_SENT, _I.REQ): Step(_A.RESEND, _S.REP_SENT),
    (_S.REP_SENT, _I.MRA): Step(_A.WAIT, _S.REP_SENT),
    (_S.REP_SENT, _I.REJ): Step(_A.REJECTED, _S.TIMEWAIT),
    (_S.REP_SENT, _I.STALE): Step(_A.REJECTED, _S.TIMEWAIT),
    (_S.REP_SENT, _I.TIMEOUT): Step(_A.RESEND, _S.REP_SENT),
    (_S.REP_SENT, _I.EXHAUSTED): Step(_A.FAIL, _S.TIMEWAIT),
    (_S.REP_SENT, _I.UNREACHABLE): Step(_A.FAIL_UNREACHABLE, _S.CLOSED),
    (_S.REP_SENT, _I.DREQ): Step(_A.ANSWER_DREQ, _S.TIMEWAIT),
    (_S.REP_SENT, _I.DISCONNECT): Step(_A.CANCEL, _S.TIMEWAIT),
    # Both sides
    (_S.ESTABLISHED, _I.REP): Step(_A.RESEND, _S.ESTABLISHED),
    (_S.ESTABLISHED, _I.REQ): Step(_A.DOUBT, _S.ESTABLISHED),
    (_S.ESTABLISHED, _I.REJ): Step(_A.LEAVE, _S.TIMEWAIT),
    (_S.ESTABLISHED, _I.DREQ): Step(_A.ANSWER_DREQ, _S.TIMEWAIT),
    (_S.ESTABLISHED, _I.DISCONNECT): Step(_A.SEND_DREQ, _S.DREQ_SENT),
    (_S.DREQ_SENT, _I.DREP): Step(_A.LEAVE, _S.TIMEWAIT),
    (_S.DREQ_SENT, _I.DREQ): Step(_A.ANSWER_DREQ, _S.TIMEWAIT),
    (_S.DREQ_SENT, _I.TIMEOUT): Step(_A.RESEND, _S.DREQ_SENT),
    (_S.DREQ_SENT, _I.EXHAUSTED): Step(_A.LEAVE, _S.TIMEWAIT),
    (_S.DREQ_SENT, _I.UNREACHABLE): Step(_A.LEAVE, _S.CLOSED),
    (_S.TIMEWAIT, _I.REP): Step(_A.REFUSE_REP, _S.TIMEWAIT),
    (_S.TIMEWAIT, _I.EXHAUSTED): Step(None, _S.CLOSED),
}
