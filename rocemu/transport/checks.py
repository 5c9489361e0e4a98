"""What an in-order request passes before it is executed ([IBTA] 9.7.4.1, in this order).

Each check gives a fault or None; the first fault ends the request.  That permission and bounds are
judged together in one step is what keeps their order from being seen.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocemu.protection import Access, Verdict
from rocemu.transport.events import Violation
from rocemu.transport.faults import Fault
from rocemu.transport.replies import AckReply
from rocemu.transport.request import ATOMICS, SAVED, Message, Request
from rocemu.verbs import AccessFlags
from rocemu.wire import Operation, PayloadRule

if TYPE_CHECKING:
    from rocemu.transport.qp import QueuePair
    from rocemu.transport.responder import Responder

__all__ = ["CHECKS", "Check", "authorize"]

MAX_MESSAGE = 1 << 31
#: FETH selectivity: the range of the RETH, or the whole region (Annex A19); others are reserved.
_SELECT_RANGE, _SELECT_REGION = 0, 1

Check = Callable[["Responder", Request], Fault | None]


def authorize(qp: "QueuePair", rkey: int, va: int, length: int, needed: AccessFlags) -> Verdict:
    """The verdict on an access of the peer through ``qp``."""
    access = Access(rkey, va, length, needed, qp.pd.handle, qp.qp_num, remote=True)
    return qp.device.table.authorize(access)


def _sequence(responder: "Responder", request: Request) -> Fault | None:
    message, info = responder.message, request.info
    if message is None:
        in_order = info.starts_message
    else:
        in_order = not info.starts_message and info.operation is message.operation
    request.message = message if in_order else None
    return None if in_order else Fault.OPCODE_SEQUENCE


def _enabled(responder: "Responder", request: Request) -> Fault | None:
    feth = request.packet.feth
    if feth is not None and (
        not 1 <= feth.placement <= 3 or feth.selectivity not in (_SELECT_RANGE, _SELECT_REGION)
    ):
        return Fault.RESERVED_OPCODE
    missing = request.right & ~responder.qp.attr.qp_access_flags
    return Fault.NOT_ENABLED if missing else None


def _resources(responder: "Responder", request: Request) -> Fault | None:
    info = request.info
    if info.operation in SAVED:
        # A repeated answer does not count: the requester may have had the first one.
        pending = sum(not isinstance(r, AckReply) and not r.repeated for r in responder.replies)
        limit = responder.qp.attr.max_dest_rd_atomic
        served = limit and responder.qp.device.profile.never_too_many_reads
        return Fault.TOO_MANY_READS if pending >= limit and not served else None
    if info.starts_message:
        request.message = Message(info.operation)
    is_send = info.operation is Operation.SEND
    if info.starts_message if is_send else info.has_immediate:
        receive = responder.take_receive()
        if receive is None:
            return Fault.RECEIVER_NOT_READY
        assert request.message is not None
        request.message.receive = receive
        if is_send:
            request.message.length = sum(sge.length for sge in receive.sg_list)
    return None


def _payload_range(rule: PayloadRule, path_mtu: int) -> tuple[int, int]:
    return {
        PayloadRule.NONE: (0, 0),
        PayloadRule.FULL: (path_mtu, path_mtu),
        PayloadRule.SOME: (1, path_mtu),
        PayloadRule.ANY: (0, path_mtu),
        PayloadRule.EIGHT: (8, 8),
    }[rule]


def _length(responder: "Responder", request: Request) -> Fault | None:
    packet, info, message = request.packet, request.info, request.message
    size = len(packet.payload)
    least, most = _payload_range(info.payload, responder.qp.path_mtu)
    if not least <= size <= most:
        return Fault.LENGTH
    if packet.reth is not None and packet.reth.length > MAX_MESSAGE:
        return Fault.LENGTH
    if info.operation is Operation.ATOMIC_WRITE and packet.reth and packet.reth.length != 8:
        return Fault.LENGTH
    if info.operation is Operation.SEND:
        assert message is not None
        if message.done + size > message.length:
            return Fault.MESSAGE_TOO_LONG
    return None


def _range(responder: "Responder", request: Request) -> tuple[int, int, int]:
    """R_Key, VA and length that the request asks for, from this packet on."""
    packet, message = request.packet, request.message
    if packet.atomiceth is not None:
        return packet.atomiceth.rkey, packet.atomiceth.va, 8
    if packet.reth is None:
        assert message is not None
        return message.rkey, message.va + message.done, message.length - message.done
    reth = packet.reth
    if message is not None:
        message.va, message.rkey, message.length = reth.va, reth.rkey, reth.length
    if packet.feth is not None and packet.feth.selectivity == _SELECT_REGION:
        entry = responder.qp.device.table.lookup(reth.rkey)
        return (reth.rkey, entry.va, entry.length) if entry else (reth.rkey, reth.va, 1)
    return reth.rkey, reth.va, reth.length


def _rkey(responder: "Responder", request: Request) -> Fault | None:
    if request.info.operation is Operation.SEND:
        return None
    rkey, va, length = _range(responder, request)
    if not length:
        return None  # neither R_Key nor VA of an empty message is looked at (C9-88)
    verdict = authorize(responder.qp, rkey, va, length, request.right)
    if not verdict.ok or verdict.entry is None:
        qp = responder.qp
        qp.device.emit(Violation("remote", verdict, qp.qp_num, request.datagram))
        return Fault.REMOTE_ACCESS
    request.region, request.place = verdict.entry.mr, verdict.entry.place(va)
    return None


def _write_sum(responder: "Responder", request: Request) -> Fault | None:
    """The payloads of a WRITE add up to its DMA length, and never to more."""
    message, info = request.message, request.info
    if info.operation is Operation.RDMA_WRITE:
        assert message is not None
        left = message.length - message.done - len(request.packet.payload)
        if left < 0 or (left and info.ends_message):
            return Fault.LENGTH
    return None


def _alignment(responder: "Responder", request: Request) -> Fault | None:
    operation, packet = request.info.operation, request.packet
    if operation in ATOMICS and packet.atomiceth is not None and packet.atomiceth.va & 7:
        return Fault.MISALIGNED_ATOMIC
    if operation is Operation.ATOMIC_WRITE and packet.reth is not None and packet.reth.va & 7:
        return Fault.MISALIGNED_ATOMIC
    return None


CHECKS: tuple[Check, ...] = (
    _sequence,
    _enabled,
    _resources,
    _length,
    _rkey,
    _write_sum,
    _alignment,
)
