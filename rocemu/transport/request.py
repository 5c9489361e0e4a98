"""A request on its way through the responder, and the message that it is part of."""

from dataclasses import dataclass

from rocemu.protection import MemoryRegion
from rocemu.transport.datagram import Datagram
from rocemu.transport.work import RecvWR
from rocemu.verbs import AccessFlags
from rocemu.wire import OpcodeInfo, Operation, Packet

__all__ = ["ATOMICS", "SAVED", "Message", "Request"]

ATOMICS = frozenset({Operation.COMPARE_SWAP, Operation.FETCH_ADD})
#: Operations whose answer is saved, for they must not be executed twice, or cannot be answered by
#: a plain ACK: they count against max_dest_rd_atomic.
SAVED = ATOMICS | {Operation.RDMA_READ, Operation.ATOMIC_WRITE, Operation.FLUSH}

#: The right that an operation needs, of the queue pair and of the region ([IBTA] 9.7.4.1.3, .5).
_RIGHTS: dict[Operation, AccessFlags] = {
    Operation.RDMA_WRITE: AccessFlags.IBV_ACCESS_REMOTE_WRITE,
    Operation.RDMA_READ: AccessFlags.IBV_ACCESS_REMOTE_READ,
    Operation.COMPARE_SWAP: AccessFlags.IBV_ACCESS_REMOTE_ATOMIC,
    Operation.FETCH_ADD: AccessFlags.IBV_ACCESS_REMOTE_ATOMIC,
    Operation.ATOMIC_WRITE: AccessFlags.IBV_ACCESS_REMOTE_WRITE,
}
#: FETH placement bits and the right that each needs (Annex A19).
_PLACEMENTS = (
    (1, AccessFlags.IBV_ACCESS_FLUSH_GLOBAL),
    (2, AccessFlags.IBV_ACCESS_FLUSH_PERSISTENT),
)


@dataclass(slots=True)
class Message:
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
class Request:
    """A request packet, and what the checks found out about it."""

    packet: Packet
    info: OpcodeInfo
    datagram: Datagram
    message: Message | None = None
    region: MemoryRegion | None = None
    place: int = 0
    """Offset in ``region``."""

    @property
    def right(self) -> AccessFlags:
        """What the operation needs; nothing for a SEND."""
        feth = self.packet.feth
        if feth is not None:
            needed = AccessFlags(0)
            for bit, right in _PLACEMENTS:
                if feth.placement & bit:
                    needed |= right
            return needed
        return _RIGHTS.get(self.info.operation, AccessFlags(0))
