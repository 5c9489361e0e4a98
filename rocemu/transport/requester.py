"""The requester of an RC queue pair: work requests out, answers in ([IBTA] 9.7.5, 9.9.2).

Work requests stay in one queue, oldest first, until they complete.  ``una`` is the oldest PSN not
acknowledged, ``psn`` the next to send; a retry moves ``psn`` back to ``una`` (go-back-N), and since
packet k of a READ *asks for everything from response k on*, the same move resumes a READ.
"""

from collections import deque
from typing import TYPE_CHECKING

from rocemu.protection import Verdict
from rocemu.transport.errors import QPError
from rocemu.transport.events import AsyncEvent, Violation
from rocemu.transport.local_work import check_local, work_here
from rocemu.transport.request import ATOMICS
from rocemu.transport.work import WC, SendWR, check_numbers
from rocemu.transport.wqe import WORK, SendWQE
from rocemu.verbs import AsyncEventType, QPState, SendFlags, WCStatus
from rocemu.wire import (
    RNR_TIMERS_MS,
    AethKind,
    NakCode,
    OpcodeInfo,
    Operation,
    Packet,
    Position,
    aeth_kind,
    psn_add,
    psn_diff,
)

if TYPE_CHECKING:
    from rocemu.transport.qp import QueuePair

__all__ = ["NAK_STATUS", "Requester"]

#: PSNs that may be on their way; what an ordinary UDP receive buffer holds at path MTU 4096.
WINDOW = 32
MAX_MESSAGE = 1 << 31
#: ECONNREFUSED, told as ``vendor_err`` when the peer's host said that nobody listens there.
CONNECTION_REFUSED = 111

#: NAKs that are not retried ([IBTA] "Requester Side Error Behavior", class B); reserved codes are
#: ignored.
NAK_STATUS: dict[int, WCStatus] = {
    NakCode.INVALID_REQUEST: WCStatus.IBV_WC_REM_INV_REQ_ERR,
    NakCode.REMOTE_ACCESS_ERROR: WCStatus.IBV_WC_REM_ACCESS_ERR,
    NakCode.REMOTE_OPERATIONAL_ERROR: WCStatus.IBV_WC_REM_OP_ERR,
    NakCode.INVALID_RD_REQUEST: WCStatus.IBV_WC_REM_INV_RD_REQ_ERR,
}


class Requester:
    """State of the sending half; a new one is made on the way to RTS."""

    def __init__(self, qp: "QueuePair") -> None:
        attr = qp.attr
        self._qp = qp
        self.queue: deque[SendWQE] = deque()
        self._index = 0
        """Where in ``queue`` the next packet to send belongs."""
        self.una = self.psn = self._top = self._next = attr.sq_psn
        # _top: one past the newest PSN ever sent; _next: the next posted message's first PSN
        self._answers_due = 0
        """READs and atomics begun and not complete, at most max_rd_atomic."""
        self._retries = self._rnr_retries = 0  # taken since the last progress
        self._retried_at: int | None = None
        """``una`` of the last retry that an answer asked for; until progress no other is heeded."""
        self._ack_deadline: float | None = None
        self._rnr_deadline: float | None = None
        self._drained = False

    # ------------------------------------------------------------------ posting

    def post(self, wr: SendWR) -> None:
        """Take a work request; raises QPError for one that no adapter takes."""
        cap, kind = self._qp.init_attr.cap, WORK.get(wr.opcode)
        inline = bool(wr.send_flags & SendFlags.IBV_SEND_INLINE)
        if kind is None:
            raise QPError(f"{wr.opcode!r}: not an operation of RC queue pairs here")
        check_numbers(wr)
        if len(self.queue) >= cap.max_send_wr:
            raise QPError(f"send queue full: max_send_wr is {cap.max_send_wr}")
        if len(wr.sg_list) > cap.max_send_sge:
            raise QPError(f"{len(wr.sg_list)} elements: max_send_sge is {cap.max_send_sge}")
        if inline and (kind.scatters or kind.operation in (Operation.FLUSH, None)):
            raise QPError(f"{wr.opcode.name}: nothing to send inline")
        check_local(wr)
        if inline and len(wr.inline_data) > cap.max_inline_data:
            raise QPError(f"{len(wr.inline_data)} bytes inline: most is {cap.max_inline_data}")
        if kind.answered and not self._qp.attr.max_rd_atomic:
            raise QPError(f"{wr.opcode.name}: max_rd_atomic of the QP is 0")
        room = len(wr.inline_data) if inline else sum(sge.length for sge in wr.sg_list)
        length = room if kind.size is None else kind.size
        too_long = length > MAX_MESSAGE or length > room or wr.flush_length > MAX_MESSAGE
        count = 1 if too_long else self._qp.packets_of(length)
        if kind.operation is None:
            count = 0
        wqe = SendWQE(wr, kind, length, self._next, count)
        wqe.fault = WCStatus.IBV_WC_LOC_LEN_ERR if too_long else None
        self._next = psn_add(self._next, count)
        self.queue.append(wqe)
        self._qp.device.activate(self._qp)

    # ------------------------------------------------------------------ sending

    def transmit(self, now: float, budget: int) -> list[bytes]:
        """Up to ``budget`` request packets, as far as window, fences and limits allow."""
        packets: list[bytes] = []
        while len(packets) < budget and self._index < len(self.queue):
            wqe = self.queue[self._index]
            if self._rnr_deadline is not None or psn_diff(self.psn, self.una) >= WINDOW:
                break
            if wqe.fault is not None:
                self._fail_if_due()
                break
            if wqe.kind.operation is None:
                if not self._work_here(wqe):
                    break
                continue
            if not wqe.started and not self._start(wqe):
                break
            packet = self._packet(wqe)
            if packet is None:
                break
            packets.append(packet)
        if not self._qp.alive:
            return []
        if packets and self._ack_deadline is None:
            self._arm(now)
        return packets

    def _start(self, wqe: SendWQE) -> bool:
        """Begin a message, unless something must come first or it is faulty itself."""
        if self._qp.state is QPState.IBV_QPS_SQD:
            return False
        if self._answers_due and wqe.wr.send_flags & SendFlags.IBV_SEND_FENCE:
            return False
        if wqe.kind.answered and self._answers_due >= self._qp.attr.max_rd_atomic:
            return False
        if not wqe.wr.send_flags & SendFlags.IBV_SEND_INLINE:
            refused = self._qp.memory.refusal(wqe.wr.sg_list, write=wqe.kind.scatters)
            if refused is not None:
                self._refuse(wqe, refused)
                return False
        wqe.started = True
        self._answers_due += wqe.kind.answered
        return True

    def _work_here(self, wqe: SendWQE) -> bool:
        """Do local work, once everything before it is complete; False while or when it is not."""
        if self._index or self._qp.state is QPState.IBV_QPS_SQD:
            return False
        status = work_here(self._qp, wqe.wr)
        if status is not WCStatus.IBV_WC_SUCCESS:
            self.fail(status)
            return False
        self._complete_head()
        return True

    def _packet(self, wqe: SendWQE) -> bytes | None:
        """The packet for ``psn``, which then moves on; None when its memory was withdrawn."""
        qp, index = self._qp, psn_diff(self.psn, wqe.first_psn)
        last = index == wqe.count - 1
        data: bytes | Verdict = b""
        if wqe.wr.send_flags & SendFlags.IBV_SEND_INLINE:
            data = wqe.wr.inline_data[index * qp.path_mtu : (index + 1) * qp.path_mtu]
        elif not wqe.kind.scatters:
            size = min(qp.path_mtu, wqe.length - index * qp.path_mtu)
            data = qp.memory.gather(wqe.wr.sg_list, index * qp.path_mtu, size)
        if isinstance(data, Verdict):
            self._refuse(wqe, data)
            return None
        # Asking twice a window for an ACK keeps a long message from stalling at the window's end.
        ackreq = last or psn_diff(self.psn, self.una) % (WINDOW // 2) == WINDOW // 2 - 1
        look = qp.device.look
        packet = wqe.packet(index, data, qp.dest_qp_num, qp.path_mtu, look, ackreq=ackreq)
        if last or wqe.kind.answered:
            self.psn = psn_add(wqe.last_psn, 1)
            self._index += 1
        else:
            self.psn = psn_add(self.psn, 1)
        if psn_diff(self.psn, self._top) > 0:
            self._top = self.psn
        return packet

    def _refuse(self, wqe: SendWQE, verdict: Verdict) -> None:
        wqe.fault = self._qp.device.profile.local_protection_status
        self._qp.device.emit(Violation("local", verdict, self._qp.qp_num))
        self._fail_if_due()

    def _fail_if_due(self) -> None:
        """A local error completes when everything before it has."""
        if self.queue and (fault := self.queue[0].fault) is not None:
            self.fail(fault)

    # ------------------------------------------------------------------ timers

    @property
    def deadline(self) -> float | None:
        """When :meth:`handle_timer` wants to be called."""
        return self._ack_deadline if self._rnr_deadline is None else self._rnr_deadline

    def _arm(self, now: float) -> None:
        timeout = self._qp.attr.timeout
        self._ack_deadline = now + 4.096e-6 * (1 << timeout) if timeout else None

    def handle_timer(self, now: float) -> None:
        """Act on an RNR wait that is over or an ACK that did not come."""
        if self._rnr_deadline is not None:
            if now >= self._rnr_deadline:
                self._rnr_deadline = None
                self._qp.device.activate(self._qp)
        elif self._ack_deadline is not None and now >= self._ack_deadline:
            self._ack_deadline = None
            self._retried_at = None
            self._retry()

    def _retry(self) -> None:
        """Send again from the oldest PSN that is not acknowledged, if retries are left."""
        limit, profile = self._qp.attr.retry_cnt, self._qp.device.profile
        for_ever = limit == 7 and profile.retry_cnt_7_is_for_ever
        if self._retries >= limit and not for_ever:
            self.fail(WCStatus.IBV_WC_RETRY_EXC_ERR)
            return
        self._retries += 1
        self._rewind()

    def _retry_once(self) -> None:
        """A retry that an answer asks for: at once, but only the first time at one place."""
        if self._retried_at != self.una and self._rnr_deadline is None:
            self._retried_at = self.una
            self._retry()

    def _rewind(self) -> None:
        self.psn, self._index = self.una, 0
        self._qp.device.activate(self._qp)

    # ------------------------------------------------------------------ answers

    def receive(self, packet: Packet, info: OpcodeInfo, now: float) -> None:
        """Take one response packet; one for a PSN never sent, or long answered, changes nothing."""
        psn = packet.bth.psn
        if psn_diff(psn, self._top) >= 0 or not self.queue:
            return
        if psn_diff(psn, self.una) < 0:
            self._late(packet, info)
            return
        before = self.una
        if info.operation is Operation.ACKNOWLEDGE:
            self._acknowledge(packet, now)
        else:
            self._answer(packet, info)
        if self.una != before:
            self._progress(now)

    def _late(self, packet: Packet, info: OpcodeInfo) -> None:
        """An answer for what was answered already: ignored, but for one thing.

        Soft-RoCE refuses a READ that it answered in part with the PSN of the request.  After a
        fatal NAK no peer says anything, so it cannot be an old one.
        """
        head = self.queue[0]
        if info.operation is Operation.ACKNOWLEDGE and head.received:
            assert packet.aeth is not None
            kind, code = aeth_kind(packet.aeth.syndrome), packet.aeth.syndrome & 31
            status = self._nak_status(code) if kind is AethKind.NAK else None
            if status is not None and packet.bth.psn == head.first_psn:
                self.fail(status)

    def _progress(self, now: float) -> None:
        if not self._qp.alive:
            return
        if psn_diff(self.una, self.psn) > 0:  # the answer to what was about to be sent again
            self.psn = self.una
        if psn_diff(self._top, self.una) > 0 and self._rnr_deadline is None:
            self._arm(now)
        else:
            self._ack_deadline = None
        self._fail_if_due()
        self.tell_drained()
        self._qp.device.activate(self._qp)

    def _acknowledge(self, packet: Packet, now: float) -> None:
        assert packet.aeth is not None
        psn, syndrome = packet.bth.psn, packet.aeth.syndrome
        kind, code = aeth_kind(syndrome), syndrome & 31
        if kind is AethKind.ACK:
            self._ack_through(psn)
        elif kind is not None and self._ack_through(psn_add(psn, -1)) and self.queue:
            if kind is AethKind.RNR_NAK:
                self._receiver_not_ready(code, now)
            elif code == NakCode.PSN_SEQUENCE_ERROR:
                self._retry_once()
            elif (status := self._nak_status(code)) is not None:
                self.fail(status)

    def _nak_status(self, code: int) -> WCStatus | None:
        """What a NAK that is not retried completes with; None for one that is ignored."""
        reserved = self._qp.device.profile.reserved_nak_status
        if reserved is not None and code >= NakCode.INVALID_RD_REQUEST:
            return reserved
        return NAK_STATUS.get(code)

    def _ack_through(self, psn: int) -> bool:
        """Everything up to ``psn`` is acknowledged; False if a READ or atomic stands before it.

        An ACK cannot complete those: their answer was lost, an implied NAK ([IBTA] 9.7.5.2.6).
        """
        while self.queue and psn_diff(psn, self.una) >= 0:
            head = self.queue[0]
            if head.kind.answered:
                self._retry_once()
                return False
            if psn_diff(psn, head.last_psn) < 0:
                self._advance(psn_add(psn, 1))
                return True
            self._advance(psn_add(head.last_psn, 1))
            self._complete_head()
        return True

    def _advance(self, psn: int) -> None:
        """``psn`` is now the oldest that is not acknowledged: all retries are there again."""
        self.una = psn
        self._retries = self._rnr_retries = 0

    def _receiver_not_ready(self, timer: int, now: float) -> None:
        if self._rnr_deadline is not None:
            return
        limit = self._qp.attr.rnr_retry
        if self._rnr_retries >= limit != 7:  # 7 is for ever
            self.fail(WCStatus.IBV_WC_RNR_RETRY_EXC_ERR)
            return
        self._rnr_retries += 1
        self._rnr_deadline = now + RNR_TIMERS_MS[timer] / 1000
        self._ack_deadline = None
        self._rewind()

    def _answer(self, packet: Packet, info: OpcodeInfo) -> None:
        """A READ response or an atomic's result: also an ACK for everything before it."""
        psn = packet.bth.psn
        head = self.queue[0]
        while psn_diff(psn, head.last_psn) > 0:
            if head.kind.answered:
                self._retry_once()
                return
            self._advance(psn_add(head.last_psn, 1))
            self._complete_head()
            if not self.queue:
                return
            head = self.queue[0]
        if psn != self.una and head.kind.operation is Operation.RDMA_READ:
            self._retry_once()  # a response is missing: implied NAK
        elif info.operation is Operation.READ_RESPONSE:
            self._read_response(head, packet, info)
        else:
            self._atomic_response(head, packet)

    def _read_response(self, head: SendWQE, packet: Packet, info: OpcodeInfo) -> None:
        """Response ``received`` of the READ at the head; FLUSH and ATOMIC WRITE get an empty one.

        Only the very first must be First or Only: later ones may answer the request or its
        resumption, and which of them cannot be told.
        """
        mtu, payload = self._qp.path_mtu, packet.payload
        last = head.received == head.count - 1
        position = info.position
        if not head.kind.read_response or (
            head.received == 0 and position not in (Position.FIRST, Position.ONLY)
        ):
            self.fail(WCStatus.IBV_WC_BAD_RESP_ERR)
            return
        expected = head.answer_length - head.received * mtu if last else mtu
        if len(payload) != expected or (position in (Position.LAST, Position.ONLY)) != last:
            self.fail(WCStatus.IBV_WC_LOC_LEN_ERR)
        elif self._place(head, head.received * mtu, payload):
            head.received += 1
            self._advance(psn_add(self.una, 1))
            if last:
                self._complete_head()

    def _atomic_response(self, head: SendWQE, packet: Packet) -> None:
        if head.kind.operation not in ATOMICS or packet.atomicacketh is None:
            self.fail(WCStatus.IBV_WC_BAD_RESP_ERR)
        elif self._place(head, 0, packet.atomicacketh.original.to_bytes(8, "little")):
            self._advance(psn_add(self.una, 1))
            self._complete_head()

    def _place(self, head: SendWQE, offset: int, data: bytes | memoryview) -> bool:
        refused = self._qp.memory.scatter(head.wr.sg_list, offset, data)
        if refused is not None:
            self._refuse(head, refused)
        return refused is None

    # ------------------------------------------------------------------ completion

    def _complete_head(self) -> None:
        wqe = self.queue.popleft()
        self._index = max(0, self._index - 1)
        self._answers_due -= wqe.kind.answered
        if wqe.wr.send_flags & SendFlags.IBV_SEND_SIGNALED or self._qp.init_attr.sq_sig_all:
            self._complete(wqe, WCStatus.IBV_WC_SUCCESS)

    def _complete(self, wqe: SendWQE, status: WCStatus, vendor_err: int = 0) -> None:
        self._qp.complete_send(
            WC(
                wqe.wr.wr_id,
                status,
                wqe.kind.completion,
                self._qp.qp_num,
                byte_len=wqe.length,
                vendor_err=vendor_err,
            )
        )

    def fail(self, status: WCStatus, vendor_err: int = 0) -> None:
        """Class B: the oldest request completes in error, even unsignaled, and the pair is done."""
        wqe = self.queue.popleft()
        self._complete(wqe, status, vendor_err)
        self._qp.enter_error()

    def unreachable(self) -> None:
        """The peer's host says that nobody listens: retries would be answered the same way."""
        if self.queue and self._top != self.una:
            self.fail(WCStatus.IBV_WC_RETRY_EXC_ERR, CONNECTION_REFUSED)

    def flush(self) -> None:
        """Complete everything with IBV_WC_WR_FLUSH_ERR, in order, sent or not, signaled or not."""
        self._ack_deadline = self._rnr_deadline = None
        self._index = 0
        while self.queue:
            wqe = self.queue.popleft()
            self._complete(wqe, WCStatus.IBV_WC_WR_FLUSH_ERR)

    @property
    def draining(self) -> bool:
        """Something was begun and is not complete."""
        return any(wqe.started for wqe in self.queue)

    def tell_drained(self) -> None:
        """Raise IBV_EVENT_SQ_DRAINED once when SQD has nothing begun left."""
        if self._qp.state is not QPState.IBV_QPS_SQD:
            self._drained = False
        elif not self._drained and not self.draining:
            self._drained = True
            self._qp.device.emit(AsyncEvent(AsyncEventType.IBV_EVENT_SQ_DRAINED, self._qp.qp_num))
