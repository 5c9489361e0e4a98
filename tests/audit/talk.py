"""Conversations made packet by packet, captured, and audited."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rocemu.audit.auditor import Audit, Summary
from rocemu.audit.findings import Finding
from rocemu.capture import (
    CapturedPacket,
    Interface,
    PcapngWriter,
    build_frame,
    open_capture,
    read_capture,
)
from rocemu.wire import (
    AETH,
    BTH,
    DETH,
    FETH,
    GSI_QKEY,
    IETH,
    OPCODES,
    RETH,
    XRCETH,
    AtomicAckETH,
    AtomicETH,
    CmMessage,
    Flow,
    ImmDt,
    Op,
    Packet,
    build,
    build_mad,
    seal,
)

ETHERNET = Interface()
MS, US = 1_000_000, 1_000
A, B = "10.1.0.1", "10.1.0.2"
VA, RKEY = 0x7F0000001000, 0x123456
PMTU = 1024


@dataclass
class Talk:
    """A requester A (QP 0x21) and a responder B (QP 0x12), captured somewhere between.

    ``q`` is the next PSN of A; every packet comes 10 us behind the one before.
    """

    q: int = 1000
    msn: int = 0
    now: int = 1_700_000_000_000_000_000
    there: Flow = field(default_factory=lambda: Flow(A, B, 0xC111))
    back: Flow = field(default_factory=lambda: Flow(B, A, 0xC222))
    qpn_a: int = 0x21
    qpn_b: int = 0x12
    frames: list[CapturedPacket] = field(default_factory=list)
    ip_id: int = 0

    # the smallest things

    def wait(self, nanoseconds: int) -> None:
        self.now += nanoseconds

    def put(self, frame: bytes, cut: int = 0) -> int:
        """A frame as it is; its number."""
        self.now += 10 * US
        data = frame[: len(frame) - cut]
        self.frames.append(CapturedPacket(self.now, data, len(frame), ETHERNET))
        return len(self.frames)

    def send(self, flow: Flow, packet: Packet | bytes, **icrc: Any) -> int:
        """A packet with its ICRC (``icrc=`` for another one); its number."""
        self.ip_id = (self.ip_id + 1) & 0xFFFF
        data = build(packet) if isinstance(packet, Packet) else packet
        sealed = seal(data, flow, self.ip_id)
        if icrc:
            sealed = sealed[:-4] + icrc["icrc"]
        return self.put(build_frame(flow, self.ip_id, sealed))

    def again(self, number: int) -> int:
        """The same bytes once more."""
        return self.put(self.frames[number - 1].data)

    def ask(
        self,
        op: int,
        payload: bytes = b"",
        *,
        psn: int | None = None,
        length: int | None = None,
        a: bool | None = None,
        va: int = VA,
        rkey: int = RKEY,
        **bth: Any,
    ) -> int:
        """A request of A; moves ``q`` on unless a PSN is given.  AckReq where a message ends."""
        info = OPCODES[op]
        if psn is None:
            psn = self.q
            count = 1
            if op & 0x1F == Op.RDMA_READ_REQUEST:
                count = max(1, -(-(length or 0) // PMTU))
            self.q = (self.q + count) & 0xFFFFFF
        size = len(payload) if length is None else length
        values = {
            "RETH": RETH(va, rkey, size),
            "AtomicETH": AtomicETH(va, rkey, 1),
            "ImmDt": ImmDt(7),
            "IETH": IETH(RKEY),
            "XRCETH": XRCETH(5),
            "FETH": FETH(1),
        }
        ackreq = info.ends_message if a is None else a
        header = replace(BTH(op, self.qpn_b, psn & 0xFFFFFF, ackreq=ackreq), **bth)
        headers = {name.lower(): values[name] for name in info.headers}
        return self.send(self.there, Packet(header, payload, **headers))

    def answer(
        self,
        op: int,
        psn: int,
        payload: bytes = b"",
        *,
        syndrome: int = 0x1F,
        msn: int | None = None,
    ) -> int:
        """An answer of B."""
        info = OPCODES[op]
        values = {
            "AETH": AETH(syndrome, (self.msn if msn is None else msn) & 0xFFFFFF),
            "AtomicAckETH": AtomicAckETH(41),
        }
        headers = {name.lower(): values[name] for name in info.headers}
        return self.send(self.back, Packet(BTH(op, self.qpn_a, psn & 0xFFFFFF), payload, **headers))

    def ack(self, psn: int | None = None, *, count: int = 1, **more: Any) -> int:
        """An ACK, of the last PSN sent; ``count`` more messages are complete with it."""
        self.msn += count
        return self.answer(Op.ACKNOWLEDGE, self.q - 1 if psn is None else psn, **more)

    def nak(self, syndrome: int, psn: int, **more: Any) -> int:
        return self.answer(Op.ACKNOWLEDGE, psn, syndrome=syndrome, **more)

    # whole operations

    def send_message(self, size: int = 16) -> int:
        """A SEND of any size with its ACK; the number of its first packet."""
        first = self._message(
            b"s" * size, Op.SEND_FIRST, Op.SEND_MIDDLE, Op.SEND_LAST, Op.SEND_ONLY
        )
        self.ack()
        return first

    def write(self, size: int = 16) -> int:
        first = self._message(
            b"w" * size,
            Op.RDMA_WRITE_FIRST,
            Op.RDMA_WRITE_MIDDLE,
            Op.RDMA_WRITE_LAST,
            Op.RDMA_WRITE_ONLY,
        )
        self.ack()
        return first

    def _message(self, data: bytes, first: int, middle: int, last: int, only: int) -> int:
        chunks = [data[at : at + PMTU] for at in range(0, len(data), PMTU)] or [b""]
        ops = [only] if len(chunks) == 1 else [first, *[middle] * (len(chunks) - 2), last]
        numbers = [
            self.ask(op, chunk, length=len(data)) for op, chunk in zip(ops, chunks, strict=True)
        ]
        return numbers[0]

    def read(self, size: int = 16, *, skip: tuple[int, ...] = ()) -> int:
        """A READ and its responses, those with index in ``skip`` left out."""
        psn = self.q
        number = self.ask(Op.RDMA_READ_REQUEST, length=size)
        self.msn += 1
        self.respond(psn, size, skip=skip)
        return number

    def respond(self, psn: int, size: int, *, skip: tuple[int, ...] = (), start: int = 0) -> None:
        """Responses from index ``start`` on to a READ at ``psn``."""
        count = max(1, -(-size // PMTU))
        for k in range(start, count):
            first, last = k == start, k == count - 1
            op = {
                (True, True): Op.RDMA_READ_RESPONSE_ONLY,
                (True, False): Op.RDMA_READ_RESPONSE_FIRST,
                (False, False): Op.RDMA_READ_RESPONSE_MIDDLE,
                (False, True): Op.RDMA_READ_RESPONSE_LAST,
            }[first, last]
            if k not in skip:
                self.answer(op, psn + k, b"r" * min(PMTU, size - k * PMTU))

    def atomic(self) -> int:
        number = self.ask(Op.FETCH_ADD)
        self.msn += 1
        self.answer(Op.ATOMIC_ACKNOWLEDGE, self.q - 1)
        return number

    def mad(self, message: CmMessage, flow: Flow, **deth: Any) -> int:
        header = replace(DETH(GSI_QKEY, 1), **deth)
        return self.send(flow, Packet(BTH(0x64, 1, 0), build_mad(message), deth=header))

    # the verdict

    def save(self, path: Path | io.BytesIO) -> None:
        file = path if isinstance(path, io.BytesIO) else path.open("wb")
        writer = PcapngWriter(file, [ETHERNET])
        for frame in self.frames:
            writer.write(frame)
        writer.flush()
        if isinstance(path, Path):
            writer.close()

    def audit(self) -> list[Finding]:
        file = io.BytesIO()
        self.save(file)
        file.seek(0)
        return audit_file(file)[0]

    def codes(self) -> set[str]:
        return {finding.code for finding in self.audit()}


def audit_file(file: Path | io.BytesIO) -> tuple[list[Finding], Summary]:
    """Findings and summary of a capture."""
    found: list[Finding] = []
    audit = Audit(found.append)
    with read_capture(file) if isinstance(file, io.BytesIO) else open_capture(file) as reader:
        summary = audit.run(reader)
    return found, summary
