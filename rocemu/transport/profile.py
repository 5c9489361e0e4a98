"""Named deviations from the specification, for whoever must meet a peer that has them.

:data:`SPEC` is the default.  :data:`SOFT_ROCE` does what Linux rdma_rxe 6.12 was seen to do, where
that differs, except for what is plainly a defect there: an ACK that completes a READ or atomic
without data, an ACK for a PSN never sent, a READ that hangs after a short response.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rocemu.transport.faults import FAULTS, Fault, FaultRow
from rocemu.verbs import WCStatus
from rocemu.wire import NakCode

__all__ = ["PROFILES", "SOFT_ROCE", "SPEC", "Profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """What a device does where peers differ."""

    name: str
    faults: Mapping[Fault, FaultRow]
    """NAK, receive status and event of each responder fault."""
    retry_cnt_7_is_for_ever: bool = False
    reserved_opcode_ignored: bool = False
    """A reserved RC opcode is dropped instead of being an Invalid Request."""
    failed_invalidate_acknowledged: bool = False
    """A SEND whose R_Key cannot be invalidated is acknowledged before the pair goes to ERR."""
    reserved_nak_status: WCStatus | None = None
    """What a NAK with a reserved code, or Invalid RD Request, completes with; None: ignored."""
    local_protection_status: WCStatus = WCStatus.IBV_WC_LOC_PROT_ERR
    """What a send work request with a bad lkey completes with."""
    every_duplicate_acknowledged: bool = False
    """One ACK for each duplicate SEND or WRITE packet; else one for those in a row."""
    never_too_many_reads: bool = False
    """READs beyond max_dest_rd_atomic are served instead of being an Invalid Request."""


SPEC = Profile("spec", MappingProxyType(FAULTS))

_INV_REQ = WCStatus.IBV_WC_REM_INV_REQ_ERR
_OP_ERR = WCStatus.IBV_WC_LOC_QP_OP_ERR
_SOFT_ROCE_STATUS: dict[Fault, WCStatus] = {
    Fault.LENGTH: _INV_REQ,
    Fault.MESSAGE_TOO_LONG: _OP_ERR,
    Fault.REMOTE_ACCESS: WCStatus.IBV_WC_REM_ACCESS_ERR,
    Fault.LOCAL_RECEIVE: _OP_ERR,
}
_SOFT_ROCE_NAK = {Fault.MESSAGE_TOO_LONG: NakCode.REMOTE_OPERATIONAL_ERROR}

SOFT_ROCE = Profile(
    "soft-roce",
    MappingProxyType(
        {
            fault: FaultRow(
                _SOFT_ROCE_NAK.get(fault, row.nak),
                _SOFT_ROCE_STATUS.get(fault, row.receive_status),
                None,  # no asynchronous event was seen in any case
            )
            for fault, row in FAULTS.items()
        }
    ),
    retry_cnt_7_is_for_ever=True,
    reserved_opcode_ignored=True,
    failed_invalidate_acknowledged=True,
    reserved_nak_status=WCStatus.IBV_WC_REM_OP_ERR,
    local_protection_status=WCStatus.IBV_WC_WR_FLUSH_ERR,
    every_duplicate_acknowledged=True,
    never_too_many_reads=True,
)

#: By the name that ``--profile`` takes.
PROFILES: dict[str, Profile] = {profile.name: profile for profile in (SPEC, SOFT_ROCE)}
