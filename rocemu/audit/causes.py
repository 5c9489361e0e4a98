"""What the rules allow as the cause of a fatal NAK, given the request that drew it."""

from rocemu.audit.exchange import Pending, Sent
from rocemu.wire import OPCODES, NakCode, Operation

__all__ = ["impossible", "name_causes"]

#: What an operation needs of the region, and of the queue pair.
_RIGHTS = {
    Operation.RDMA_WRITE: "remote_write",
    Operation.RDMA_READ: "remote_read",
    Operation.COMPARE_SWAP: "remote_atomic",
    Operation.FETCH_ADD: "remote_atomic",
    Operation.ATOMIC_WRITE: "remote_write",
    Operation.FLUSH: "flush_global or flush_persistent",
}
#: Served from the responder's resources, of which there may be none or too few.
_ATOMICS = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)


def name_causes(code: NakCode, sent: Sent, pending: Pending | None) -> str:
    """The causes that are left, in words joined by commas and an or."""
    info = OPCODES.get(sent.opcode)
    if info is None:
        return "no such opcode"
    operation = info.operation
    right = _RIGHTS.get(operation)
    causes: list[str] = []
    if code is NakCode.REMOTE_ACCESS_ERROR:
        causes = ["R_Key unknown, withdrawn or of another PD", "range out of bounds"]
        if right:
            causes.append(f"region without {right}")
    elif code is NakCode.INVALID_REQUEST:
        if right:
            causes.append(f"queue pair without {right}")
        if operation is Operation.RDMA_READ or operation in _ATOMICS:
            causes.append("more READs and atomics than the responder serves")
        if operation in _ATOMICS and pending is not None and pending.va & 7:
            causes = [f"address {pending.va:#x} is no multiple of 8"]
        if operation is Operation.SEND:
            causes.append("longer than the receive that was posted")
        causes.append("opcode out of sequence or not supported")
        causes.append("a length that its opcode, the path MTU or the RETH does not allow")
    else:
        if operation is Operation.SEND or info.has_immediate:
            causes.append("the receive that was posted (its lkey, its range) is bad")
        causes.append("a local fault of the responder")
    return ", or ".join(causes)


def impossible(code: NakCode, sent: Sent, pending: Pending | None) -> str | None:
    """Why the request cannot have drawn the NAK; None when it can."""
    info = OPCODES.get(sent.opcode)
    if info is None:
        return None if code is NakCode.INVALID_REQUEST else "there is no such opcode"
    if code is NakCode.REMOTE_ACCESS_ERROR:
        if info.operation is Operation.SEND and not info.has_invalidate:
            return "it has no R_Key"
        empty = (
            info.operation is Operation.RDMA_WRITE
            and info.starts_message
            and (info.ends_message and not sent.payload)
        )
        if empty or (
            info.operation is Operation.RDMA_READ and pending is not None and not pending.length
        ):
            return "with length 0 the R_Key is not looked at"
    return None
