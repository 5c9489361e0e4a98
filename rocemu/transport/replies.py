"""What a responder owes its peer: ACKs and NAKs, atomic results, READ responses."""

from dataclasses import dataclass

from rocemu.transport.look import PacketLook
from rocemu.wire import (
    AETH,
    AethKind,
    AtomicAckETH,
    Op,
    Packet,
    ack_syndrome,
    aeth_kind,
    build,
    psn_add,
)

__all__ = ["AckReply", "AtomicReply", "ReadReply", "Reply"]


@dataclass(frozen=True, slots=True)
class AckReply:
    """An Acknowledge packet: an ACK or any NAK, by its syndrome."""

    psn: int
    syndrome: int
    msn: int

    @property
    def is_ack(self) -> bool:
        """An ACK, not a NAK of any kind."""
        return aeth_kind(self.syndrome) is AethKind.ACK

    def packet(self, dest_qp: int, look: PacketLook) -> bytes:
        return build(
            Packet(look.bth(Op.ACKNOWLEDGE, dest_qp, self.psn), aeth=AETH(self.syndrome, self.msn))
        )


@dataclass(frozen=True, slots=True)
class AtomicReply:
    """An ATOMIC Acknowledge with the value that memory held before."""

    psn: int
    msn: int
    original: int
    repeated: bool = False
    """The answer to a duplicate."""

    def packet(self, dest_qp: int, look: PacketLook) -> bytes:
        return build(
            Packet(
                look.bth(Op.ATOMIC_ACKNOWLEDGE, dest_qp, self.psn),
                aeth=AETH(ack_syndrome(), self.msn),
                atomicacketh=AtomicAckETH(self.original),
            )
        )


@dataclass(slots=True)
class ReadReply:
    """The responses of one READ request, sent one by one; ``psn`` is the first one's."""

    psn: int
    count: int
    msn: int
    va: int
    rkey: int
    length: int
    sent: int = 0
    repeated: bool = False
    """The answer to a duplicate."""

    @property
    def done(self) -> bool:
        return self.sent == self.count

    def next_packet(self, dest_qp: int, look: PacketLook, data: bytes | memoryview) -> bytes:
        """The next response around its data; Middle has no AETH."""
        first, last = self.sent == 0, self.sent == self.count - 1
        if first:
            op = Op.RDMA_READ_RESPONSE_ONLY if last else Op.RDMA_READ_RESPONSE_FIRST
        else:
            op = Op.RDMA_READ_RESPONSE_LAST if last else Op.RDMA_READ_RESPONSE_MIDDLE
        aeth = AETH(ack_syndrome(), self.msn) if first or last else None
        psn = psn_add(self.psn, self.sent)
        self.sent += 1
        return build(Packet(look.bth(op, dest_qp, psn), data, aeth=aeth))


Reply = AckReply | AtomicReply | ReadReply
