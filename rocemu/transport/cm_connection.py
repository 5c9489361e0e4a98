"""One RC connection as the connection manager knows it, and the moves of its queue pair."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocemu.transport.attributes import TRANSITIONS, AddressVector, QPAttr
from rocemu.transport.cm_states import CmState
from rocemu.verbs import MTU, AccessFlags, QPAttrMask, QPState

if TYPE_CHECKING:
    from rocemu.transport.qp import QueuePair

__all__ = ["CmConnection", "CmError", "to_error", "to_init", "to_rts"]


class CmError(ValueError):
    """A call that the connection's state, or the size of a message, does not allow."""


@dataclass(slots=True, eq=False, kw_only=True)
class CmConnection:
    """A connection, made by ``connect`` or by a REQ; the application reads it, the CM writes it."""

    active: bool
    """True where ``connect`` was called."""
    peer_address: str
    port: int
    """The service's port: the peer's on the active side, ours on the passive one."""
    source_port: int
    """The active side's port; tells connections apart for people, nothing listens on it."""
    local_comm_id: int
    remote_comm_id: int = 0
    """0 while unknown, as is the next."""
    remote_qpn: int = 0
    state: CmState = CmState.IDLE
    qp: "QueuePair | None" = None
    private_data: bytes = b""
    """The peer's, zero-filled: 56 bytes from a REQ, 196 from a REP."""

    path_mtu: MTU
    responder_resources: int
    """READs and atomics that our queue pair serves at once; until accept, what the peer asks."""
    initiator_depth: int
    """READs and atomics that our queue pair may have outstanding; until accept, likewise."""
    retry_count: int
    rnr_retry: int
    ack_timeout: int
    """4.096 us * 2^n."""
    min_rnr_timer: int = 0
    flow_label: int
    """Of both directions, so that both have the same UDP source port."""
    rq_psn: int = 0
    """The PSN that we told the peer to begin with."""
    sq_psn: int = 0
    """The PSN that the peer told us to begin with."""

    transaction_id: int
    last: bytes = field(default=b"", repr=False)
    """The last MAD sent, for when it must be repeated."""
    deadline: float | None = None
    tries_left: int = 0
    copies_until: float = 0.0
    """Passive side: until then another REQ may be a copy of the one that made the connection."""
    stale: bool = False
    """The peer said that it still holds an older connection of our queue pair."""


def to_init(qp: "QueuePair", access: AccessFlags) -> None:
    """RESET or INIT to INIT; raises QPError in any other state."""
    attr = QPAttr(qp_state=QPState.IBV_QPS_INIT, qp_access_flags=access)
    needs = TRANSITIONS[QPState.IBV_QPS_RESET, QPState.IBV_QPS_INIT].required
    qp.modify(attr, QPAttrMask.IBV_QP_STATE | needs)


def to_rts(qp: "QueuePair", connection: CmConnection) -> None:
    """INIT to RTR to RTS with what the two sides agreed on; raises QPError in any other state."""
    look = qp.device.look
    attr = QPAttr(
        av=AddressVector(
            connection.peer_address, look.tos, look.ttl, connection.flow_label or None
        ),
        path_mtu=connection.path_mtu,
        dest_qp_num=connection.remote_qpn,
        rq_psn=connection.rq_psn,
        max_dest_rd_atomic=connection.responder_resources,
        min_rnr_timer=connection.min_rnr_timer,
        sq_psn=connection.sq_psn,
        timeout=connection.ack_timeout,
        retry_cnt=connection.retry_count,
        rnr_retry=connection.rnr_retry,
        max_rd_atomic=connection.initiator_depth,
    )
    old = QPState.IBV_QPS_INIT
    for new in (QPState.IBV_QPS_RTR, QPState.IBV_QPS_RTS):
        attr.qp_state = new
        qp.modify(attr, QPAttrMask.IBV_QP_STATE | TRANSITIONS[old, new].required)
        old = new


def to_error(connection: CmConnection) -> None:
    """To ERR, unless the queue pair does not serve this connection (any more)."""
    qp = connection.qp
    # The one that sent a DREQ went to ERR then, and may serve another connection by now.
    if qp is None or connection.state is CmState.DREQ_SENT:
        return
    if qp.state not in (QPState.IBV_QPS_RESET, QPState.IBV_QPS_ERR):
        qp.modify(QPAttr(qp_state=QPState.IBV_QPS_ERR), QPAttrMask.IBV_QP_STATE)
