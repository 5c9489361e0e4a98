"""A send work request on its way: what it asks for, its PSNs, and its packets."""

from dataclasses import dataclass
from typing import NamedTuple

from rocemu.transport.look import PacketLook
from rocemu.transport.request import ATOMICS, SAVED
from rocemu.transport.work import SendWR
from rocemu.verbs import SendFlags, WCOpcode, WCStatus, WROpcode
from rocemu.wire import (
    FETH,
    IETH,
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

    operation: Operation | None
    """None for local work: nothing leaves, and it takes no PSN."""
    completion: WCOpcode
    tail: str | None = None
    """The header that travels on the message's end: ImmDt or IETH."""
    size: int | None = None
    """Message bytes where they are fixed."""

    @property
    def answered(self) -> bool:
        """An ACK is not enough: the peer answers by more, and saves its answer."""
        return self.operation in SAVED

    @property
    def scatters(self) -> bool:
        """Local memory is written by the answer (READ, atomics), not read for the request."""
        return self.operation in ATOMICS or self.operation is Operation.RDMA_READ

    @property
    def read_response(self) -> bool:
        """The answer is a READ response; an empty one for FLUSH and ATOMIC WRITE."""
        return self.answered and self.operation not in ATOMICS


_MASK64 = (1 << 64) - 1

_SEND, _WRITE = Operation.SEND, Operation.RDMA_WRITE
WORK: dict[WROpcode, WorkKind] = {
    WROpcode.IBV_WR_SEND: WorkKind(_SEND, WCOpcode.IBV_WC_SEND),
    WROpcode.IBV_WR_SEND_WITH_IMM: WorkKind(_SEND, WCOpcode.IBV_WC_SEND, "ImmDt"),
    WROpcode.IBV_WR_SEND_WITH_INV: WorkKind(_SEND, WCOpcode.IBV_WC_SEND, "IETH"),
    WROpcode.IBV_WR_RDMA_WRITE: WorkKind(_WRITE, WCOpcode.IBV_WC_RDMA_WRITE),
    WROpcode.IBV_WR_RDMA_WRITE_WITH_IMM: WorkKind(_WRITE, WCOpcode.IBV_WC_RDMA_WRITE, "ImmDt"),
    WROpcode.IBV_WR_RDMA_READ: WorkKind(Operation.RDMA_READ, WCOpcode.IBV_WC_RDMA_READ),
    WROpcode.IBV_WR_ATOMIC_CMP_AND_SWP: WorkKind(
        Operation.COMPARE_SWAP, WCOpcode.IBV_WC_COMP_SWAP, size=8
    ),
    WROpcode.IBV_WR_ATOMIC_FETCH_AND_ADD: WorkKind(
        Operation.FETCH_ADD, WCOpcode.IBV_WC_FETCH_ADD, size=8
    ),
    WROpcode.IBV_WR_ATOMIC_WRITE: WorkKind(
        Operation.ATOMIC_WRITE, WCOpcode.IBV_WC_ATOMIC_WRITE, size=8
    ),
    WROpcode.IBV_WR_FLUSH: WorkKind(Operation.FLUSH, WCOpcode.IBV_WC_FLUSH, size=0),
    WROpcode.IBV_WR_LOCAL_INV: WorkKind(None, WCOpcode.IBV_WC_LOCAL_INV, size=0),
    WROpcode.IBV_WR_BIND_MW: WorkKind(None, WCOpcode.IBV_WC_BIND_MW, size=0),
    WROpcode.IBV_WR_REG_MR: WorkKind(None, WCOpcode.IBV_WC_REG_MR, size=0),
}

# (operation, position, header at the end) -> RC opcode
_TAILS = frozenset({"ImmDt", "IETH"})
_OPCODES: dict[tuple[Operation, Position, str | None], int] = {
    (info.operation, info.position, next((h for h in info.headers if h in _TAILS), None)): opcode
    for opcode, info in OPCODES.items()
    if info.transport is Transport.RC
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

    @property
    def answer_length(self) -> int:
        """Bytes that READ responses bring."""
        return self.length if self.kind.operation is Operation.RDMA_READ else 0

    def packet(
        self,
        index: int,
        data: bytes,
        dest_qp: int,
        path_mtu: int,
        look: PacketLook,
        *,
        ackreq: bool,
    ) -> bytes:
        """Packet ``index`` of the message around its data.

        A READ's packet ``index`` asks for everything from its response ``index`` on: with 0 it is
        the request, with more it resumes one.
        """
        kind, wr, last = self.kind, self.wr, index == self.count - 1
        assert kind.operation is not None
        psn = psn_add(self.first_psn, index)
        if kind.operation is Operation.RDMA_READ:
            skipped = index * path_mtu
            opcode = _OPCODES[kind.operation, Position.ONLY, None]
            reth = RETH(wr.remote_addr + skipped & _MASK64, wr.rkey, self.length - skipped)
            return build(Packet(look.bth(opcode, dest_qp, psn, ackreq=True), reth=reth))
        if index == 0:
            position = Position.ONLY if last else Position.FIRST
        else:
            position = Position.LAST if last else Position.MIDDLE
        tail = kind.tail if last else None
        bth = look.bth(_OPCODES[kind.operation, position, tail], dest_qp, psn, ackreq=ackreq)
        packet = Packet(bth, data)
        if last and kind.operation in (Operation.SEND, Operation.RDMA_WRITE):
            bth.se = bool(wr.send_flags & SendFlags.IBV_SEND_SOLICITED)
        if tail == "ImmDt":
            packet.immdt = ImmDt(wr.imm_data)
        elif tail == "IETH":
            packet.ieth = IETH(wr.invalidate_rkey)
        if index == 0:
            self._add_target(packet)
        return build(packet)

    def _add_target(self, packet: Packet) -> None:
        """The headers that say what of the peer's memory is meant."""
        wr = self.wr
        match self.kind.operation:
            case Operation.RDMA_WRITE | Operation.ATOMIC_WRITE:
                packet.reth = RETH(wr.remote_addr, wr.rkey, self.length)
            case Operation.COMPARE_SWAP:
                packet.atomiceth = AtomicETH(wr.remote_addr, wr.rkey, wr.swap, wr.compare_add)
            case Operation.FETCH_ADD:
                packet.atomiceth = AtomicETH(wr.remote_addr, wr.rkey, wr.compare_add)
            case Operation.FLUSH:
                packet.feth = FETH(wr.flush_placement, wr.flush_selectivity)
                packet.reth = RETH(wr.remote_addr, wr.rkey, wr.flush_length)
