"""The responder of an RC queue pair: requests in, replies out ([IBTA] 9.7.4, 9.7.5, 9.9.3).

A request meets the PSN gate first.  In order, it passes :data:`CHECKS` one after the other; the
first that fails names a :class:`~rocemu.transport.faults.Fault`, and the fault table says the rest.
What passes is executed and acknowledged.  Replies wait in one queue, in PSN order, until the
device sends them; READ responses are built only then, from memory as it is at that moment.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocemu.protection import Access, MemoryRegion, Verdict
from rocemu.transport.datagram import Datagram
from rocemu.transport.events import AsyncEvent, Violation
from rocemu.transport.faults import FAULTS, Fault
from rocemu.transport.replies import AckReply, AtomicReply, ReadReply, Reply
from rocemu.transport.work import WC, RecvWR
from rocemu.verbs import AccessFlags, WCFlags, WCOpcode, WCStatus
from rocemu.wire import (
    NakCode,
    OpcodeInfo,
    Operation,
    Packet,
    PayloadRule,
    ack_syndrome,
    nak_syndrome,
    psn_add,
    psn_diff,
    rnr_syndrome,
)

if TYPE_CHECKING:
    from rocemu.transport.qp import QueuePair

__all__ = ["Responder"]

MAX_MESSAGE = 1 << 31
_MASK64 = (1 << 64) - 1

#: The right that an operation needs, of the queue pair and of the region ([IBTA] 9.7.4.1.3, .5).
_RIGHTS: dict[Operation, AccessFlags] = {
    Operation.RDMA_WRITE: AccessFlags.IBV_ACCESS_REMOTE_WRITE,
    Operation.RDMA_READ: AccessFlags.IBV_ACCESS_REMOTE_READ,
    Operation.COMPARE_SWAP: AccessFlags.IBV_ACCESS_REMOTE_ATOMIC,
    Operation.FETCH_ADD: AccessFlags.IBV_ACCESS_REMOTE_ATOMIC,
}
_ATOMICS = (Operation.COMPARE_SWAP, Operation.FETCH_ADD)


@dataclass(slots=True)
class _Message:
    """A SEND or WRITE between its First and Last packet."""

    operation: Operation
    done: int = 0
    """Payload bytes taken so far."""
    va: int = 0
    rkey: int = 0
    length: int = 0
    """WRITE: DMA length of the RETH; SEND: bytes that the receive has room for."""
    receive: RecvWR | None = None


@dataclass(slots=True)
class _Resource:
    """A READ or atomic that may be asked for again ([IBTA] 9.7.4.1.2, responder resources)."""

    psn: int
    last_psn: int
    msn: int
    va: int
    rkey: int
    length: int = 0
    original: int | None = None
    """The atomic's result; None for a READ."""


@dataclass(slots=True)
class _Request:
    """A request on its way through the checks, and what they found out."""

    packet: Packet
    info: OpcodeInfo
    datagram: Datagram
    message: _Message | None = None
    region: MemoryRegion | None = None
    place: int = 0
    """Offset in ``region``."""


class Responder:
    """State of the receiving half; a new one is made when the queue pair is reset."""

    def __init__(self, qp: "QueuePair") -> None:
        self._qp = qp
        self.epsn = qp.attr.rq_psn
        self.msn = 0
        self.receives: deque[RecvWR] = deque()
        self.replies: deque[Reply] = deque()
        self._message: _Message | None = None
        self._resources: deque[_Resource] = deque()
        pmtu = qp.path_mtu
        self._payload_range = {
            PayloadRule.NONE: (0, 0),
            PayloadRule.FULL: (pmtu, pmtu),
            PayloadRule.SOME: (1, pmtu),
            PayloadRule.ANY: (0, pmtu),
            PayloadRule.EIGHT: (8, 8),
        }
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
            request = _Request(packet, info, datagram)
            for step in CHECKS:
                fault = step(self, request)
                if fault is Fault.RECEIVER_NOT_READY:
                    self._receiver_not_ready()
                    return
                if fault is not None:
                    self.fail(fault, request)
                    return
            fault = self._execute(request)
            if fault is not None:
                self.fail(fault, request)

    def reserved_opcode(self, psn: int) -> bool:
        """An opcode that RC reserves: an Invalid Request when in order; True if it was that."""
        if psn != self.epsn:
            return False
        self.fail(Fault.RESERVED_OPCODE, None)
        return True

    def _out_of_sequence(self) -> None:
        if not self._silent:
            self._silent = True
            self._reply(AckReply(self.epsn, nak_syndrome(NakCode.PSN_SEQUENCE_ERROR), self.msn))

    def _receiver_not_ready(self) -> None:
        self._silent = True
        self._reply(AckReply(self.epsn, rnr_syndrome(self._qp.attr.min_rnr_timer), self.msn))

    def fail(self, fault: Fault, request: _Request | None) -> None:
        """Answer a fault of class A or C: NAK, completion or event, and the end of the pair.

        Replies that were owed before the fault leave ahead of the NAK.
        """
        row = FAULTS[fault]
        qp = self._qp
        self._reply(AckReply(self.epsn, nak_syndrome(row.nak), self.msn))
        message = request.message if request and request.message else self._message
        if message and message.receive:
            qp.complete_receive(
                WC(message.receive.wr_id, row.receive_status, WCOpcode.IBV_WC_RECV, qp.qp_num)
            )
        else:
            qp.device.emit(AsyncEvent(row.event, qp.qp_num))
        self._message = None
        qp.enter_error()

    # ------------------------------------------------------------------ checks, in order

    def _check_sequence(self, request: _Request) -> Fault | None:
        message, info = self._message, request.info
        if message is None:
            in_order = info.starts_message
        else:
            in_order = not info.starts_message and info.operation is message.operation
        if not in_order:
            return Fault.OPCODE_SEQUENCE
        request.message = message
        return None

    def _check_enabled(self, request: _Request) -> Fault | None:
        info = request.info
        if info.has_invalidate or info.operation in (Operation.FLUSH, Operation.ATOMIC_WRITE):
            return Fault.RESERVED_OPCODE
        right = _RIGHTS.get(info.operation)
        if right is not None and not self._qp.attr.qp_access_flags & right:
            return Fault.NOT_ENABLED
        return None

    def _check_resources(self, request: _Request) -> Fault | None:
        info = request.info
        if info.operation is Operation.RDMA_READ or info.operation in _ATOMICS:
            # A repeated answer does not count: the requester may have had the first one.
            pending = sum(not isinstance(r, AckReply) and not r.repeated for r in self.replies)
            if pending >= self._qp.attr.max_dest_rd_atomic:
                return Fault.TOO_MANY_READS
            return None
        if info.starts_message:
            request.message = _Message(info.operation)
        takes_receive = (
            info.starts_message if info.operation is Operation.SEND else info.has_immediate
        )
        if takes_receive:
            if not self.receives:
                return Fault.RECEIVER_NOT_READY
            assert request.message is not None
            request.message.receive = self.receives.popleft()
            if info.operation is Operation.SEND:
                sg_list = request.message.receive.sg_list
                request.message.length = sum(sge.length for sge in sg_list)
        return None

    def _check_length(self, request: _Request) -> Fault | None:
        packet, info = request.packet, request.info
        size = len(packet.payload)
        least, most = self._payload_range[info.payload]
        if not least <= size <= most:
            return Fault.LENGTH
        if packet.reth is not None and packet.reth.length > MAX_MESSAGE:
            return Fault.LENGTH
        message = request.message
        if info.operation is Operation.SEND:
            assert message is not None
            if message.done + size > message.length:
                return Fault.LENGTH
        return None

    def _check_rkey(self, request: _Request) -> Fault | None:
        packet, operation = request.packet, request.info.operation
        message = request.message
        if operation is Operation.SEND:
            return None
        if operation in _ATOMICS:
            assert packet.atomiceth is not None
            va, rkey, length = packet.atomiceth.va, packet.atomiceth.rkey, 8
        elif packet.reth is not None:
            va, rkey, length = packet.reth.va, packet.reth.rkey, packet.reth.length
            if message is not None:
                message.va, message.rkey, message.length = va, rkey, length
        else:
            assert message is not None
            va, rkey = message.va + message.done, message.rkey
            length = message.length - message.done
        if not length:
            return None  # neither R_Key nor VA of an empty message is looked at (C9-88)
        verdict = self._authorize(rkey, va, length, _RIGHTS[operation])
        if not verdict.ok or verdict.entry is None:
            self._report(verdict, request.datagram)
            return Fault.REMOTE_ACCESS
        request.region, request.place = verdict.entry.mr, va - verdict.entry.va
        return None

    def _check_write_sum(self, request: _Request) -> Fault | None:
        """The payloads of a WRITE add up to its DMA length, and never to more."""
        message, info = request.message, request.info
        if info.operation is Operation.RDMA_WRITE:
            assert message is not None
            left = message.length - message.done - len(request.packet.payload)
            if left < 0 or (left and info.ends_message):
                return Fault.LENGTH
        return None

    def _check_alignment(self, request: _Request) -> Fault | None:
        atomic = request.packet.atomiceth
        return Fault.MISALIGNED_ATOMIC if atomic is not None and atomic.va & 7 else None

    # ------------------------------------------------------------------ execution

    def _execute(self, request: _Request) -> Fault | None:
        operation = request.info.operation
        if operation is Operation.RDMA_READ:
            self._read(request.packet)
        elif operation in _ATOMICS:
            self._atomic(request)
        else:
            return self._take_payload(request)
        return None

    def _take_payload(self, request: _Request) -> Fault | None:
        packet, info, message = request.packet, request.info, request.message
        assert message is not None
        payload = packet.payload
        if info.operation is Operation.RDMA_WRITE:
            if payload and request.region is not None:
                request.region.write(request.place, payload)
        elif payload:
            assert message.receive is not None
            refused = self._qp.memory.scatter(message.receive.sg_list, message.done, payload)
            if refused is not None:
                self._qp.device.emit(Violation("local", refused, self._qp.qp_num, request.datagram))
                return Fault.LOCAL_RECEIVE
        message.done += len(payload)
        self._message = None if info.ends_message else message
        self.epsn = psn_add(self.epsn, 1)
        if info.ends_message:
            self.msn = psn_add(self.msn, 1)
        if info.ends_message and message.receive is not None:
            self._complete(message, packet)
        if packet.bth.ackreq and self._qp.alive:
            self._reply(AckReply(packet.bth.psn, ack_syndrome(), self.msn))
        return None

    def _complete(self, message: _Message, packet: Packet) -> None:
        assert message.receive is not None
        is_send = message.operation is Operation.SEND
        self._qp.complete_receive(
            WC(
                message.receive.wr_id,
                WCStatus.IBV_WC_SUCCESS,
                WCOpcode.IBV_WC_RECV if is_send else WCOpcode.IBV_WC_RECV_RDMA_WITH_IMM,
                self._qp.qp_num,
                byte_len=message.done,
                imm_data=packet.immdt.immediate if packet.immdt else None,
                wc_flags=WCFlags.IBV_WC_WITH_IMM if packet.immdt else WCFlags(0),
            )
        )

    def _read(self, packet: Packet) -> None:
        reth = packet.reth
        assert reth is not None
        count = self._qp.packets_of(reth.length)
        self.msn = psn_add(self.msn, 1)
        psn = packet.bth.psn
        self._remember(
            _Resource(psn, psn_add(psn, count - 1), self.msn, reth.va, reth.rkey, reth.length)
        )
        self._reply(ReadReply(psn, count, self.msn, reth.va, reth.rkey, reth.length))
        self.epsn = psn_add(psn, count)

    def _atomic(self, request: _Request) -> None:
        atomic, region, psn = request.packet.atomiceth, request.region, request.packet.bth.psn
        assert atomic is not None
        assert region is not None
        original = region.load64(request.place)
        if request.info.operation is Operation.FETCH_ADD:
            region.store64(request.place, (original + atomic.swap_or_add) & _MASK64)
        elif original == atomic.compare:
            region.store64(request.place, atomic.swap_or_add)
        self.msn = psn_add(self.msn, 1)
        self._remember(_Resource(psn, psn, self.msn, atomic.va, atomic.rkey, original=original))
        self._reply(AtomicReply(psn, self.msn, original))
        self.epsn = psn_add(psn, 1)

    def _remember(self, resource: _Resource) -> None:
        """Keep what a retry may ask for: the newest max_dest_rd_atomic of them."""
        self._resources.appendleft(resource)
        while len(self._resources) > self._qp.attr.max_dest_rd_atomic:
            self._resources.pop()

    # ------------------------------------------------------------------ duplicates

    def _duplicate(self, packet: Packet, info: OpcodeInfo, datagram: Datagram) -> None:
        """A request seen before: answered again, never executed again, never a NAK (class D)."""
        if info.operation in (Operation.SEND, Operation.RDMA_WRITE):
            newest = AckReply(psn_add(self.epsn, -1), ack_syndrome(), self.msn)
            if not self.replies or self.replies[-1] != newest:
                self._reply(newest)
            return
        psn = packet.bth.psn
        resource = next((r for r in self._resources if _covers(r, psn)), None)
        reply = self._repeat(resource, packet, datagram) if resource is not None else None
        if reply is None:
            self._qp.device.drop(
                "duplicate", f"{info.name} PSN {psn}: nothing saved that fits", datagram, packet.bth
            )
            return
        # A retry means that the requester gave up on what is still waiting from this PSN on.
        while self.replies and psn_diff(self.replies[-1].psn, psn) >= 0:
            self.replies.pop()
        self._reply(reply)

    def _repeat(self, resource: _Resource, packet: Packet, datagram: Datagram) -> Reply | None:
        """The answer to a request that was answered before, None when it is not the same one.

        A READ may ask for the rest of the first, and is judged anew: its key may be gone by now.
        """
        atomic, reth, psn = packet.atomiceth, packet.reth, packet.bth.psn
        if atomic is not None:
            same = atomic.va == resource.va and atomic.rkey == resource.rkey
            if resource.original is None or not same:
                return None
            return AtomicReply(psn, resource.msn, resource.original, repeated=True)
        if reth is None or resource.original is not None:
            return None
        skipped = psn_diff(psn, resource.psn) * self._qp.path_mtu
        fits = (
            reth.rkey == resource.rkey
            and reth.va == resource.va + skipped
            and reth.length <= resource.length - skipped
        )
        if not fits:
            return None
        right = _RIGHTS[Operation.RDMA_READ]
        verdict = self._authorize(reth.rkey, reth.va, reth.length, right)
        if not verdict.ok:
            self._report(verdict, datagram)
            return None
        count = self._qp.packets_of(reth.length)
        return ReadReply(psn, count, resource.msn, reth.va, reth.rkey, reth.length, repeated=True)

    # ------------------------------------------------------------------ replies

    def _reply(self, reply: Reply) -> None:
        self.replies.append(reply)
        self._qp.device.activate(self._qp)

    def transmit(self, budget: int) -> list[bytes]:
        """Up to ``budget`` reply packets, oldest first."""
        packets: list[bytes] = []
        qp = self._qp
        while self.replies and len(packets) < budget:
            reply = self.replies[0]
            if isinstance(reply, ReadReply):
                data = self._read_data(reply)
                if data is None:
                    continue
                packets.append(reply.next_packet(qp.dest_qp_num, data))
                if reply.done:
                    self.replies.popleft()
            else:
                packets.append(reply.packet(qp.dest_qp_num))
                self.replies.popleft()
        return packets

    def _read_data(self, reply: ReadReply) -> memoryview | bytes | None:
        """The next response's bytes; None when the key was withdrawn in between.

        The NAK then carries the PSN of the first response that was not sent.  No source we could
        read settles this PSN; the kernel uses the request's.
        """
        offset = reply.sent * self._qp.path_mtu
        length = min(self._qp.path_mtu, reply.length - offset)
        if not length:
            return b""
        va = reply.va + offset
        verdict = self._authorize(reply.rkey, va, length, _RIGHTS[Operation.RDMA_READ])
        if verdict.ok and verdict.entry is not None and verdict.entry.mr is not None:
            return verdict.entry.mr.view(va - verdict.entry.va, length)
        self._report(verdict, None)
        row = FAULTS[Fault.REMOTE_ACCESS]
        psn = psn_add(reply.psn, reply.sent)
        self.replies.clear()
        self._reply(AckReply(psn, nak_syndrome(row.nak), psn_add(reply.msn, -1)))
        if self._qp.alive:
            self._qp.device.emit(AsyncEvent(row.event, self._qp.qp_num))
            self._qp.enter_error()
        return None

    # ------------------------------------------------------------------ help

    def _authorize(self, rkey: int, va: int, length: int, needed: AccessFlags) -> Verdict:
        qp = self._qp
        return qp.device.table.authorize(
            Access(rkey, va, length, needed, qp.pd.handle, qp.qp_num, remote=True)
        )

    def _report(self, verdict: Verdict, datagram: Datagram | None) -> None:
        self._qp.device.emit(Violation("remote", verdict, self._qp.qp_num, datagram))

    def flush(self) -> None:
        """Complete every posted receive with IBV_WC_WR_FLUSH_ERR, in posting order."""
        qp = self._qp
        if self._message and self._message.receive:
            self.receives.appendleft(self._message.receive)
        self._message = None
        while self.receives:
            wr = self.receives.popleft()
            qp.complete_receive(
                WC(wr.wr_id, WCStatus.IBV_WC_WR_FLUSH_ERR, WCOpcode.IBV_WC_RECV, qp.qp_num)
            )


def _covers(resource: _Resource, psn: int) -> bool:
    return psn_diff(psn, resource.psn) >= 0 >= psn_diff(psn, resource.last_psn)


#: What an in-order request passes, in this order; each gives a fault or None.  That permission and
#: bounds are judged together in one step is what keeps their order from being seen.
CHECKS: tuple[Callable[[Responder, _Request], Fault | None], ...] = (
    Responder._check_sequence,
    Responder._check_enabled,
    Responder._check_resources,
    Responder._check_length,
    Responder._check_rkey,
    Responder._check_write_sum,
    Responder._check_alignment,
)
