"""Responder resources: what a retry may ask for again ([IBTA] 9.7.4.1.2, 9.7.5.1.4)."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocemu.transport.checks import authorize
from rocemu.transport.datagram import Datagram
from rocemu.transport.events import Violation
from rocemu.transport.replies import AtomicReply, ReadReply, Reply
from rocemu.verbs import AccessFlags
from rocemu.wire import Operation, Packet, psn_diff

if TYPE_CHECKING:
    from rocemu.transport.qp import QueuePair

__all__ = ["Resource", "ResourceRing"]


@dataclass(slots=True)
class Resource:
    """A READ, atomic, ATOMIC WRITE or FLUSH that was answered."""

    operation: Operation
    psn: int
    last_psn: int
    msn: int
    va: int
    rkey: int
    length: int = 0
    original: int = 0
    """The atomic's result."""


class ResourceRing:
    """The newest ``max_dest_rd_atomic`` of them."""

    def __init__(self, qp: "QueuePair") -> None:
        self._qp = qp
        self._saved: deque[Resource] = deque()

    def save(self, resource: Resource) -> None:
        """Keep a resource, in place of the oldest when there are too many."""
        self._saved.appendleft(resource)
        while len(self._saved) > self._qp.attr.max_dest_rd_atomic:
            self._saved.pop()

    def first_between(self, psn: int, epsn: int) -> Resource | None:
        """The oldest of them whose request comes after ``psn`` and before ``epsn``."""
        for saved in reversed(self._saved):
            if psn_diff(saved.psn, psn) > 0 > psn_diff(saved.psn, epsn):
                return saved
        return None

    def repeat(self, packet: Packet, datagram: Datagram) -> Reply | None:
        """The answer to a request that was answered before, None when it is not the same one."""
        psn, operation = packet.bth.psn, packet.info.operation
        saved = next((r for r in self._saved if _covers(r, psn)), None)
        if saved is None or saved.operation is not operation:
            return None
        if packet.atomiceth is not None:
            asked = packet.atomiceth.rkey, packet.atomiceth.va
            if asked != (saved.rkey, saved.va):
                return None
            return AtomicReply(psn, saved.msn, saved.original, repeated=True)
        if operation is Operation.RDMA_READ:
            return self._read_again(saved, packet, datagram)
        return ReadReply(psn, 1, saved.msn, saved.va, saved.rkey, 0, repeated=True)

    def _read_again(self, saved: Resource, packet: Packet, datagram: Datagram) -> Reply | None:
        """A READ may ask for the rest of the first, and is judged anew: its key may be gone."""
        qp, reth, psn = self._qp, packet.reth, packet.bth.psn
        assert reth is not None
        skipped = psn_diff(psn, saved.psn) * qp.path_mtu
        fits = (
            reth.rkey == saved.rkey
            and reth.va == saved.va + skipped
            and reth.length <= saved.length - skipped
        )
        if not fits:
            return None
        right = AccessFlags.IBV_ACCESS_REMOTE_READ
        verdict = authorize(qp, reth.rkey, reth.va, reth.length, right)
        if not verdict.ok:
            qp.device.emit(Violation("remote", verdict, qp.qp_num, datagram))
            return None
        count = qp.packets_of(reth.length)
        return ReadReply(psn, count, saved.msn, reth.va, reth.rkey, reth.length, repeated=True)


def _covers(resource: Resource, psn: int) -> bool:
    return psn_diff(psn, resource.psn) >= 0 >= psn_diff(psn, resource.last_psn)
