"""Makes a capture of any number of packets: what benchmarks read.

    python bench/traffic.py 1000000 /tmp/million.pcapng

Queue pairs of four hosts, each with its own stream of SENDs, WRITEs, READs and atomics, whose
sizes are spread evenly over orders of magnitude; all by the rules, all ICRCs right.  The same
arguments make the same file.
"""

import random
import sys
from collections.abc import Iterator
from itertools import islice

from rocemu.capture import CapturedPacket, Interface, PcapngWriter, build_frame, create_file
from rocemu.wire import (
    AETH,
    BTH,
    PSN_MASK,
    RETH,
    AtomicAckETH,
    AtomicETH,
    Flow,
    Op,
    Packet,
    build,
    seal,
)

PMTU = 1024
PAIRS = 64
LARGEST = 16_384
_NOISE = random.Random(4791).randbytes(1 << 20)


class Stream:
    """One requester's traffic with its responder, one message after the other."""

    def __init__(self, index: int, numbers: random.Random) -> None:
        hosts = [f"10.0.{index % 4}.{1 + side}" for side in (0, 1)]
        port = 0xC000 + index
        self.there = Flow(hosts[0], hosts[1], port)
        self.back = Flow(hosts[1], hosts[0], port)
        self.qpn, self.peer_qpn = 0x100 + index, 0x200 + index
        self.psn = numbers.getrandbits(24)
        self.msn = 0
        self.ip_id = numbers.getrandbits(16)
        self._numbers = numbers

    def message(self) -> Iterator[tuple[Flow, int, bytes]]:
        """The packets of one message and of its answer: flow, IP ID, BTH to ICRC."""
        kind = self._numbers.choice(("send", "write", "write", "read", "atomic"))
        size = 1 << self._numbers.randrange(3, LARGEST.bit_length())
        size -= self._numbers.randrange(size // 2)
        packets = {
            "send": self._sending,
            "write": self._writing,
            "read": self._reading,
            "atomic": self._atomic,
        }[kind](size)
        for flow, packet in packets:
            self.ip_id = (self.ip_id + 1) & 0xFFFF
            yield flow, self.ip_id, seal(build(packet), flow, self.ip_id)

    def _bth(self, op: int, psn: int, *, back: bool = False, ackreq: bool = False) -> BTH:
        return BTH(op, self.qpn if back else self.peer_qpn, psn & PSN_MASK, ackreq=ackreq)

    def _cut(
        self, size: int, first: int, middle: int, last: int, only: int
    ) -> list[tuple[int, bytes]]:
        at = self._numbers.randrange(len(_NOISE) - LARGEST)
        chunks = [_NOISE[at + k : at + min(k + PMTU, size)] for k in range(0, size, PMTU)]
        if len(chunks) == 1:
            return [(only, chunks[0])]
        ops = [first, *[middle] * (len(chunks) - 2), last]
        return list(zip(ops, chunks, strict=True))

    def _ack(self) -> tuple[Flow, Packet]:
        self.msn = (self.msn + 1) & PSN_MASK
        bth = self._bth(Op.ACKNOWLEDGE, self.psn - 1, back=True)
        return self.back, Packet(bth, aeth=AETH(0x1F, self.msn))

    def _requests(
        self, parts: list[tuple[int, bytes]], reth: RETH | None
    ) -> Iterator[tuple[Flow, Packet]]:
        for op, chunk in parts:
            last = op is parts[-1][0] and chunk is parts[-1][1]
            bth = self._bth(op, self.psn, ackreq=last)
            yield self.there, Packet(bth, chunk, reth=reth)
            reth = None
            self.psn = (self.psn + 1) & PSN_MASK
        yield self._ack()

    def _sending(self, size: int) -> Iterator[tuple[Flow, Packet]]:
        parts = self._cut(size, Op.SEND_FIRST, Op.SEND_MIDDLE, Op.SEND_LAST, Op.SEND_ONLY)
        return self._requests(parts, None)

    def _writing(self, size: int) -> Iterator[tuple[Flow, Packet]]:
        parts = self._cut(
            size,
            Op.RDMA_WRITE_FIRST,
            Op.RDMA_WRITE_MIDDLE,
            Op.RDMA_WRITE_LAST,
            Op.RDMA_WRITE_ONLY,
        )
        return self._requests(parts, RETH(0x7F0000000000, 0x1234, size))

    def _reading(self, size: int) -> Iterator[tuple[Flow, Packet]]:
        bth = self._bth(Op.RDMA_READ_REQUEST, self.psn, ackreq=True)
        yield self.there, Packet(bth, reth=RETH(0x7F0000000000, 0x1234, size))
        self.msn = (self.msn + 1) & PSN_MASK
        parts = self._cut(
            size,
            Op.RDMA_READ_RESPONSE_FIRST,
            Op.RDMA_READ_RESPONSE_MIDDLE,
            Op.RDMA_READ_RESPONSE_LAST,
            Op.RDMA_READ_RESPONSE_ONLY,
        )
        for op, chunk in parts:
            aeth = None if op == Op.RDMA_READ_RESPONSE_MIDDLE else AETH(0x1F, self.msn)
            yield self.back, Packet(self._bth(op, self.psn, back=True), chunk, aeth=aeth)
            self.psn = (self.psn + 1) & PSN_MASK

    def _atomic(self, size: int) -> Iterator[tuple[Flow, Packet]]:
        bth = self._bth(Op.FETCH_ADD, self.psn, ackreq=True)
        yield self.there, Packet(bth, atomiceth=AtomicETH(0x7F0000000000, 0x1234, size))
        self.msn = (self.msn + 1) & PSN_MASK
        bth = self._bth(Op.ATOMIC_ACKNOWLEDGE, self.psn, back=True)
        yield self.back, Packet(bth, aeth=AETH(0x1F, self.msn), atomicacketh=AtomicAckETH(size))
        self.psn = (self.psn + 1) & PSN_MASK


def traffic(seed: int = 1) -> Iterator[tuple[Flow, int, bytes]]:
    """Packets without end, the messages of all queue pairs in turn and interleaved."""
    numbers = random.Random(seed)
    streams = [Stream(index, numbers) for index in range(PAIRS)]
    under_way = [stream.message() for stream in streams]
    while True:
        index = numbers.randrange(PAIRS)
        packet = next(under_way[index], None)
        if packet is None:
            under_way[index] = streams[index].message()
        else:
            yield packet


def write(count: int, path: str) -> None:
    """A pcapng file of ``count`` packets, one each 2 us."""
    interface = Interface(name="bench0")
    writer = PcapngWriter(create_file(path), [interface], application="rocemu bench")
    for index, (flow, ip_id, sealed) in enumerate(islice(traffic(), count)):
        frame = build_frame(flow, ip_id, sealed)
        writer.write(CapturedPacket(index * 2000, frame, len(frame), interface))
    writer.close()


if __name__ == "__main__":
    write(int(sys.argv[1]), sys.argv[2])
