"""The responder of an RC queue pair: requests in, replies out ([IBTA] 9.7.4, 9.7.5, 9.9.3).

A request meets the PSN gate first.  In order, it passes :data:`~rocemu.transport.checks.CHECKS` one
after the other; the first that fails names a :class:`~rocemu.transport.faults.Fault`, and the fault
table says the rest.  What passes is executed and acknowledged.  Replies wait in one queue, in PSN
order, until the device sends them; READ responses are built only then, from memory as it is at that
moment.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from rocemu.transport.checks import CHECKS, authorize
from rocemu.transport.datagram import Datagram
from rocemu.transport.events import AsyncEvent, Violation
from rocemu.transport.faults import Fault
from rocemu.transport.replies import AckReply, AtomicReply, ReadReply, Reply
from rocemu.transport.request import Message, Request
from rocemu.transport.resources import Resource, ResourceRing
from rocemu.transport.work import WC, RecvWR
from rocemu.verbs import AccessFlags, AsyncEventType, WCFlags, WCOpcode, WCStatus
from rocemu.wire import (
    NakCode,
    OpcodeInfo,
    Operation,
    Packet,
    ack_syndrome,
    nak_syndrome,
    psn_add,
    psn_diff,
    rnr_syndrome,
)

if TYPE_CHECKING:
    from rocemu.transport.qp import QueuePair

__all__ = ["AckPolicy", "Responder"]

_MASK64 = (1 << 64) - 1


class AckPolicy(Enum):
    """Which SEND and WRITE packets are acknowledged; any choice is allowed ([IBTA] 9.7.5.1.2)."""

    REQUESTED = "requested"
    """Those that ask for it (AckReq), each."""
    COALESCED = "coalesced"
    """The newest of those that ask and were not answered yet: one ACK covers all before it."""
    EVERY = "every"
    """All of them."""


class Responder:
    """State of the receiving half; a new one is made when the queue pair is reset."""

    def __init__(self, qp: "QueuePair") -> None:
        self.qp = qp
        self.epsn = qp.attr.rq_psn
        self.msn = 0
        self.receives: deque[RecvWR] = deque()
        self.replies: deque[Reply] = deque()
        self.message: Message | None = None
        """The SEND or WRITE that is not complete."""
        self._resources = ResourceRing(qp)
        self._silent = False
        """A sequence or RNR NAK went out: no further one until the expected PSN has come."""

    # ------------------------------------------------------------------ the way of a request

    def receive(self, packet: Packet, info: OpcodeInfo, datagram: Datagram) -> None:
        """Take one request packet."""
        ahead = psn_diff(packet.bth.psn, self.epsn)
        if ahead > 0:
            self._out_of_sequence()
        elif ahead < 0:
            self._duplicate(packet, info, datagram)
        else:
            self._silent = False
            request = Request(packet, info, datagram)
            for check in CHECKS:
                fault = check(self, request)
                if fault is Fault.RECEIVER_NOT_READY:
                    self._receiver_not_ready()
                    return
                if fault is not None:
                    self.fail(fault, request)
                    return
            execute = _EXECUTE.get(info.operation, Responder._take_payload)
            fault = execute(self, request)
            if fault is not None:
                self.fail(fault, request)

    def reserved_opcode(self, psn: int) -> bool:
        """An opcode that RC reserves: an Invalid Request when in order; True if it was that."""
        if psn != self.epsn or self.qp.device.profile.reserved_opcode_ignored:
            return False
        self.fail(Fault.RESERVED_OPCODE, None)
        return True

    def take_receive(self) -> RecvWR | None:
        """The oldest posted receive, of the queue pair or of its SRQ."""
        srq = self.qp.init_attr.srq
        if srq is not None:
            return srq.take()
        return self.receives.popleft() if self.receives else None

    def _out_of_sequence(self) -> None:
        if not self._silent:
            self._silent = True
            self._reply(AckReply(self.epsn, nak_syndrome(NakCode.PSN_SEQUENCE_ERROR), self.msn))

    def _receiver_not_ready(self) -> None:
        self._silent = True
        self._reply(AckReply(self.epsn, rnr_syndrome(self.qp.attr.min_rnr_timer), self.msn))

    def fail(self, fault: Fault, request: Request | None) -> None:
        """Answer a fault of class A, C or J: NAK, completion or event, the end of the pair.

        Replies that were owed before the fault leave ahead of the NAK.
        """
        qp = self.qp
        row = qp.device.profile.faults[fault]
        if row.nak is not None:
            self._reply(AckReply(self.epsn, nak_syndrome(row.nak), self.msn))
        message = request.message if request and request.message else self.message
        if message and message.receive:
            qp.complete_receive(
                WC(message.receive.wr_id, row.receive_status, WCOpcode.IBV_WC_RECV, qp.qp_num)
            )
        elif row.event is not None:
            qp.device.emit(AsyncEvent(row.event, qp.qp_num))
        self.message = None
        qp.enter_error()

    # ------------------------------------------------------------------ execution

    def _take_payload(self, request: Request) -> Fault | None:
        """A packet of a SEND or WRITE: its data goes to memory, its end completes a receive."""
        packet, info, message = request.packet, request.info, request.message
        assert message is not None
        fault = self._place(request, message)
        if fault is not None:
            return fault
        message.done += len(packet.payload)
        if packet.ieth is not None and not self._invalidate(packet.ieth.rkey):
            if self.qp.device.profile.failed_invalidate_acknowledged:
                self._reply(AckReply(packet.bth.psn, ack_syndrome(), psn_add(self.msn, 1)))
            return Fault.INVALIDATE
        self.message = None if info.ends_message else message
        self.epsn = psn_add(self.epsn, 1)
        if info.ends_message:
            self.msn = psn_add(self.msn, 1)
            if message.receive is not None:
                self._complete(message, packet)
        if self.qp.alive:
            self._acknowledge(packet)
        return None

    def _place(self, request: Request, message: Message) -> Fault | None:
        payload = request.packet.payload
        if not payload:
            return None
        if message.operation is Operation.RDMA_WRITE:
            if request.region is not None:
                request.region.write(request.place, payload)
            return None
        assert message.receive is not None
        refused = self.qp.memory.scatter(message.receive.sg_list, message.done, payload)
        if refused is None:
            return None
        self.qp.device.emit(Violation("local", refused, self.qp.qp_num, request.datagram))
        return Fault.LOCAL_RECEIVE

    def _invalidate(self, rkey: int) -> bool:
        return self.qp.device.table.invalidate(rkey, self.qp.pd.handle, self.qp.qp_num)

    def _complete(self, message: Message, packet: Packet) -> None:
        assert message.receive is not None
        is_send = message.operation is Operation.SEND
        flags = WCFlags(0)
        if packet.immdt is not None:
            flags |= WCFlags.IBV_WC_WITH_IMM
        if packet.ieth is not None:
            flags |= WCFlags.IBV_WC_WITH_INV
        completion = WC(
            message.receive.wr_id,
            WCStatus.IBV_WC_SUCCESS,
            WCOpcode.IBV_WC_RECV if is_send else WCOpcode.IBV_WC_RECV_RDMA_WITH_IMM,
            self.qp.qp_num,
            byte_len=message.done,
            imm_data=packet.immdt.immediate if packet.immdt else None,
            invalidated_rkey=packet.ieth.rkey if packet.ieth else None,
            wc_flags=flags,
        )
        self.qp.complete_receive(completion, solicited=packet.bth.se)

    def _acknowledge(self, packet: Packet) -> None:
        policy = self.qp.device.ack_policy
        if not packet.bth.ackreq and policy is not AckPolicy.EVERY:
            return
        last = self.replies[-1] if self.replies else None
        if policy is AckPolicy.COALESCED and isinstance(last, AckReply) and last.is_ack:
            self.replies.pop()
        self._reply(AckReply(packet.bth.psn, ack_syndrome(), self.msn))

    def _read(self, request: Request) -> None:
        reth = request.packet.reth
        assert reth is not None
        count = self.qp.packets_of(reth.length)
        self._answer(request, count, reth.va, reth.rkey, reth.length)

    def _flush(self, request: Request) -> None:
        """FLUSH: what was written before is where it can be seen, or kept ([IBTA] Annex A19)."""
        reth = request.packet.reth
        assert reth is not None
        if request.region is not None:
            request.region.flush()
        self._answer(request, 1, reth.va, reth.rkey, 0)

    def _atomic_write(self, request: Request) -> None:
        reth, region = request.packet.reth, request.region
        assert reth is not None
        assert region is not None
        region.write(request.place, request.packet.payload)
        self._answer(request, 1, reth.va, reth.rkey, 0)

    def _answer(self, request: Request, count: int, va: int, rkey: int, length: int) -> None:
        """Save a request that is answered by READ responses, and owe them."""
        psn = request.packet.bth.psn
        self.msn = psn_add(self.msn, 1)
        operation, last = request.info.operation, psn_add(psn, count - 1)
        self._resources.save(Resource(operation, psn, last, self.msn, va, rkey, length))
        self._reply(ReadReply(psn, count, self.msn, va, rkey, length))
        self.epsn = psn_add(psn, count)

    def _atomic(self, request: Request) -> None:
        atomic, region, psn = request.packet.atomiceth, request.region, request.packet.bth.psn
        assert atomic is not None
        assert region is not None
        operation = request.info.operation
        original = region.load64(request.place)
        if operation is Operation.FETCH_ADD:
            region.store64(request.place, (original + atomic.swap_or_add) & _MASK64)
        elif original == atomic.compare:
            region.store64(request.place, atomic.swap_or_add)
        self.msn = psn_add(self.msn, 1)
        self._resources.save(
            Resource(operation, psn, psn, self.msn, atomic.va, atomic.rkey, original=original)
        )
        self._reply(AtomicReply(psn, self.msn, original))
        self.epsn = psn_add(psn, 1)

    # ------------------------------------------------------------------ duplicates

    def _duplicate(self, packet: Packet, info: OpcodeInfo, datagram: Datagram) -> None:
        """A request seen before: answered again, never executed again, never a NAK (class D)."""
        psn, device = packet.bth.psn, self.qp.device
        if info.operation in (Operation.SEND, Operation.RDMA_WRITE):
            newest = self._newest(psn)
            once = not device.profile.every_duplicate_acknowledged
            if not (once and self.replies and self.replies[-1] == newest):
                self._reply(newest)
            return
        reply = self._resources.repeat(packet, datagram)
        if reply is None:
            why = f"{info.name} PSN {psn}: nothing saved that fits"
            device.drop("duplicate", why, datagram, packet.bth)
            return
        # A retry means that the requester gave up on what is still waiting from this PSN on.
        while self.replies and psn_diff(self.replies[-1].psn, psn) >= 0:
            self.replies.pop()
        self._reply(reply)

    def _newest(self, psn: int) -> AckReply:
        """The ACK for a duplicate: everything so far, but no READ or atomic after it.

        Those may have to be answered again, and an ACK is no answer: to a requester it means that
        theirs was lost, and the kernel's takes it for one and completes without the data.
        """
        resource = self._resources.first_between(psn, self.epsn)
        if resource is None:
            return AckReply(psn_add(self.epsn, -1), ack_syndrome(), self.msn)
        return AckReply(psn_add(resource.psn, -1), ack_syndrome(), psn_add(resource.msn, -1))

    # ------------------------------------------------------------------ replies

    def _reply(self, reply: Reply) -> None:
        self.replies.append(reply)
        self.qp.device.activate(self.qp)

    def transmit(self, budget: int) -> list[bytes]:
        """Up to ``budget`` reply packets, oldest first."""
        packets: list[bytes] = []
        look = self.qp.device.look
        while self.replies and len(packets) < budget:
            reply = self.replies[0]
            if isinstance(reply, ReadReply):
                data = self._read_data(reply)
                if data is None:
                    continue
                packets.append(reply.next_packet(self.qp.dest_qp_num, look, data))
                if reply.done:
                    self.replies.popleft()
            else:
                packets.append(reply.packet(self.qp.dest_qp_num, look))
                self.replies.popleft()
        return packets

    def _read_data(self, reply: ReadReply) -> memoryview | bytes | None:
        """The next response's bytes; None when the key was withdrawn in between.

        The NAK then carries the PSN of the first response that was not sent.  No source we could
        read settles this PSN; the kernel uses the request's.
        """
        qp = self.qp
        offset = reply.sent * qp.path_mtu
        length = min(qp.path_mtu, reply.length - offset)
        if not length:
            return b""
        va = reply.va + offset
        verdict = authorize(qp, reply.rkey, va, length, AccessFlags.IBV_ACCESS_REMOTE_READ)
        if verdict.ok and verdict.entry is not None and verdict.entry.mr is not None:
            return verdict.entry.mr.view(verdict.entry.place(va), length)
        qp.device.emit(Violation("remote", verdict, qp.qp_num))
        row = qp.device.profile.faults[Fault.REMOTE_ACCESS]
        assert row.nak is not None
        psn = psn_add(reply.psn, reply.sent)
        self.replies.clear()
        self._reply(AckReply(psn, nak_syndrome(row.nak), psn_add(reply.msn, -1)))
        if qp.alive:
            if row.event is not None:
                qp.device.emit(AsyncEvent(row.event, qp.qp_num))
            qp.enter_error()
        return None

    def flush(self) -> None:
        """Complete every receive that is ours with IBV_WC_WR_FLUSH_ERR, in posting order.

        Receives that are still in an SRQ stay there; when none of ours is left, that is told.
        """
        qp = self.qp
        if self.message and self.message.receive:
            self.receives.appendleft(self.message.receive)
        self.message = None
        while self.receives:
            wr = self.receives.popleft()
            qp.complete_receive(
                WC(wr.wr_id, WCStatus.IBV_WC_WR_FLUSH_ERR, WCOpcode.IBV_WC_RECV, qp.qp_num)
            )
        if qp.init_attr.srq is not None:
            last = AsyncEventType.IBV_EVENT_QP_LAST_WQE_REACHED
            qp.device.emit(AsyncEvent(last, qp.qp_num))


_EXECUTE: dict[Operation, Callable[[Responder, Request], Fault | None]] = {
    Operation.RDMA_READ: Responder._read,
    Operation.COMPARE_SWAP: Responder._atomic,
    Operation.FETCH_ADD: Responder._atomic,
    Operation.ATOMIC_WRITE: Responder._atomic_write,
    Operation.FLUSH: Responder._flush,
}
