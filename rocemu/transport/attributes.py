"""Queue pair attributes and the table of allowed moves ([man] ibv_modify_qp, [IBTA] 11.2.5.2)."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import NamedTuple

from rocemu.transport.cq import CompletionQueue
from rocemu.transport.errors import QPError
from rocemu.transport.srq import SharedReceiveQueue
from rocemu.verbs import MTU, AccessFlags, QPState, QPType
from rocemu.verbs import QPAttrMask as M

__all__ = ["TRANSITIONS", "AddressVector", "QPAttr", "QPCap", "QPInitAttr", "Transition"]


@dataclass(frozen=True, slots=True)
class AddressVector:
    """Where a connected queue pair sends to (``ibv_ah_attr`` with a RoCEv2 GID)."""

    address: str
    """The peer's IPv4 or IPv6 address in text; on the wire its GID is the mapped form."""
    tos: int = 0
    ttl: int = 64
    flow_label: int | None = None
    """20 bits that give the UDP source port; None: derived from the two QPNs."""

    def __post_init__(self) -> None:
        """Bring the address into its one usual form, which is what datagrams come with."""
        try:
            object.__setattr__(self, "address", str(ip_address(self.address)))
        except ValueError:
            raise QPError(f"{self.address!r} is no IP address") from None
        for name, bits in (("tos", 8), ("ttl", 8), ("flow_label", 20)):
            if (getattr(self, name) or 0) not in range(1 << bits):
                raise QPError(f"{name} {getattr(self, name)}: allowed are 0 to {(1 << bits) - 1}")


@dataclass(frozen=True, slots=True)
class QPCap:
    """Queue sizes (``ibv_qp_cap``)."""

    max_send_wr: int = 1024
    max_recv_wr: int = 1024
    max_send_sge: int = 32
    max_recv_sge: int = 32
    max_inline_data: int = 4096


@dataclass(frozen=True, slots=True)
class QPInitAttr:
    """What a queue pair is made with (``ibv_qp_init_attr``)."""

    send_cq: CompletionQueue
    recv_cq: CompletionQueue
    qp_type: QPType = QPType.IBV_QPT_RC
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: bool = False
    srq: SharedReceiveQueue | None = None
    """Where receives come from, in place of the queue pair's own."""


@dataclass(slots=True)
class QPAttr:
    """Attributes for :meth:`QueuePair.modify`; a mask says which count (``ibv_qp_attr``)."""

    qp_state: QPState = QPState.IBV_QPS_RESET
    cur_qp_state: QPState = QPState.IBV_QPS_RESET
    en_sqd_async_notify: bool = False
    qp_access_flags: AccessFlags = AccessFlags(0)
    pkey_index: int = 0
    port_num: int = 1
    av: AddressVector = field(default_factory=lambda: AddressVector("0.0.0.0"))
    path_mtu: MTU = MTU.IBV_MTU_1024
    timeout: int = 14
    """Local ACK timeout, 4.096 us * 2^timeout; 0 waits for ever."""
    retry_cnt: int = 7
    rnr_retry: int = 7
    """7 means for ever."""
    rq_psn: int = 0
    max_rd_atomic: int = 16
    min_rnr_timer: int = 12
    sq_psn: int = 0
    max_dest_rd_atomic: int = 16
    dest_qp_num: int = 0


class Transition(NamedTuple):
    """Attributes that a move needs and those it may take besides."""

    required: M
    optional: M


_NONE = M(0)
_S = QPState
_RUN = M.IBV_QP_CUR_STATE | M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_MIN_RNR_TIMER
_IN_INIT = M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS

#: Moves of an RC queue pair.  A pair that is not a key is refused; RESET from anywhere and ERR from
#: anywhere but RESET need nothing.  Alternate paths are not supported and so in no list.
TRANSITIONS: dict[tuple[QPState, QPState], Transition] = {
    (_S.IBV_QPS_RESET, _S.IBV_QPS_INIT): Transition(_IN_INIT, _NONE),
    (_S.IBV_QPS_INIT, _S.IBV_QPS_INIT): Transition(_NONE, _IN_INIT),
    (_S.IBV_QPS_INIT, _S.IBV_QPS_RTR): Transition(
        M.IBV_QP_AV
        | M.IBV_QP_PATH_MTU
        | M.IBV_QP_DEST_QPN
        | M.IBV_QP_RQ_PSN
        | M.IBV_QP_MAX_DEST_RD_ATOMIC
        | M.IBV_QP_MIN_RNR_TIMER,
        M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_PKEY_INDEX,
    ),
    (_S.IBV_QPS_RTR, _S.IBV_QPS_RTS): Transition(
        M.IBV_QP_SQ_PSN
        | M.IBV_QP_TIMEOUT
        | M.IBV_QP_RETRY_CNT
        | M.IBV_QP_RNR_RETRY
        | M.IBV_QP_MAX_QP_RD_ATOMIC,
        _RUN,
    ),
    (_S.IBV_QPS_RTS, _S.IBV_QPS_RTS): Transition(_NONE, _RUN),
    (_S.IBV_QPS_RTS, _S.IBV_QPS_SQD): Transition(_NONE, M.IBV_QP_EN_SQD_ASYNC_NOTIFY),
    (_S.IBV_QPS_SQD, _S.IBV_QPS_RTS): Transition(_NONE, _RUN),
    (_S.IBV_QPS_SQD, _S.IBV_QPS_SQD): Transition(
        _NONE,
        M.IBV_QP_PORT
        | M.IBV_QP_AV
        | M.IBV_QP_TIMEOUT
        | M.IBV_QP_RETRY_CNT
        | M.IBV_QP_RNR_RETRY
        | M.IBV_QP_MAX_QP_RD_ATOMIC
        | M.IBV_QP_MAX_DEST_RD_ATOMIC
        | M.IBV_QP_ACCESS_FLAGS
        | M.IBV_QP_PKEY_INDEX
        | M.IBV_QP_MIN_RNR_TIMER,
    ),
    **{(state, _S.IBV_QPS_RESET): Transition(_NONE, _NONE) for state in _S},
    **{
        (state, _S.IBV_QPS_ERR): Transition(_NONE, _NONE)
        for state in _S
        if state is not _S.IBV_QPS_RESET
    },
}
