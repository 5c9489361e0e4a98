"""A send work request on its way: what it asks for, its PSNs, and its packets."""

from dataclasses import dataclass
from typing import NamedTuple

from rocemu.transport.work import SendWR
from rocemu.verbs import SendFlags, WCOpcode, WCStatus, WROpcode
from rocemu.wire import (
    BTH,
    OPCODES,
    RETH,
    AtomicETH,
    ImmDt,
    Operation,
    Packet,
    Position,
    Transport,
    build,
    psn_add,
)

__all__ = ["WORK", "SendWQE", "WorkKind"]


class WorkKind(NamedTuple):
    """What a send opcode means on the wire and in a completion."""

    operation: Operation
    immediate: bool
    completion: WCOpcode

    @property
    def answered(self) -> bool:
        """The peer answers with data (READ, atomics), so an ACK is not enough."""
        return self.operation not in (Operation.SEND, Operation.RDMA_WRITE)


_SEND, _WRITE = Operation.SEND, Operation.RDMA_WRITE
WORK: dict[WROpcode, WorkKind] = {
    WROpcode.IBV_WR_SEND: WorkKind(_SEND, False, WCOpcode.IBV_WC_SEND),
    WROpcode.IBV_WR_SEND_WITH_IMM: WorkKind(_SEND, True, WCOpcode.IBV_WC_SEND),
    WROpcode.IBV_WR_RDMA_WRITE: WorkKind(_WRITE, False, WCOpcode.IBV_WC_RDMA_WRITE),
    WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM: WorkKind(_WRITE, True, WCOpcode.IBV_WC_RDMA_WRITE),
    WROpcode.IBV_WR_RDMA_READ: WorkKind(Operation.RDMA_READ, False, WCOpcode.IBV_WC_RDMA_READ),
    WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP: WorkKind(
        Operation.COMPARE_SWAP, False, WCOpcode.IBV_WC_COMP_SWAP
    ),
    WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD: WorkKind(
        Operation.FETCH_ADD, False, WCOpcode.IBV_WC_FETCH_ADD
    ),
}

# (operation, position, with immediate) -> RC opcode; an immediate travels on the message's end.
_OPCODES = {
    (info.operation, info.position, info.has_immediate): opcode
    for opcode, info in OPCODES.items()
    if info.transport is Transport.RC and not info.has_invalidate
}


@dataclass(slots=True)
class SendWQE:
    """A posted send work request."""

    wr: SendWR
    kind: WorkKind
    length: int
    """Message bytes; 8 for an atomic."""
    first_psn: int
    count: int
    """PSNs that the message takes: its packets, or for a READ those of its responses."""
    started: bool = False
    received: int = 0
    """READ: responses taken so far."""
    fault: WCStatus | None = None
    """A local error found before the first packet; it completes when it is its turn."""

    @property
    def last_psn(self) -> int:
        return psn_add(self.first_psn, self.count - 1)

    def packet(
        self, index: int, data: bytes, dest_qp: int, path_mtu: int, *, ackreq: bool
    ) -> bytes:
        """Packet ``index`` of the message around its data.

        A READ's packet ``index`` asks for everything from its response ``index`` on: with 0 it is
        the request, with more it resumes one.
        """
        kind, wr, last = self.kind, self.wr, index == self.count - 1
        psn = psn_add(self.first_psn, index)
        if kind.operation is Operation.RDMA_READ:
            skipped = index * path_mtu
            opcode = _OPCODES[kind.operation, Position.ONLY, False]
            va = (wr.remote_addr + skipped) % (1 << 64)
            reth = RETH(va, wr.rkey, self.length - skipped)
            return build(Packet(BTH(opcode, dest_qp, psn, ackreq=True), reth=reth))
        if index == 0:
            position = Position.ONLY if last else Position.FIRST
        else:
            position = Position.LAST if last else Position.MIDDLE
        immediate = kind.immediate and last
        packet = Packet(
            BTH(_OPCODES[kind.operation, position, immediate], dest_qp, psn, ackreq=ackreq), data
        )
        if last:
            packet.bth.se = bool(wr.send_flags & SendFlags.IBV_SEND_SOLICITED)
        if immediate:
            packet.immdt = ImmDt(wr.imm_data)
        if kind.operation is Operation.RDMA_WRITE:
            if index == 0:
                packet.reth = RETH(wr.remote_addr, wr.rkey, self.length)
        elif kind.operation is Operation.COMPARE_SWAP:
            packet.atomiceth = AtomicETH(wr.remote_addr, wr.rkey, wr.swap, wr.compare_add)
        elif kind.operation is Operation.FETCH_ADD:
            packet.atomiceth = AtomicETH(wr.remote_addr, wr.rkey, wr.compare_add)
        return build(packet)
