"""The passive side: accept connections on a CM port and advertise regions."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable

from rocemu.net.advert import DIRECTORY_NAME, RemoteRegion, pack_regions, without_room
from rocemu.net.connection import ALL_REMOTE, DEFAULT_PORT, Connection
from rocemu.net.nic import Nic
from rocemu.net.sockets import NetError, checked_mtu
from rocemu.protection import MemoryRegion, ProtectionDomain
from rocemu.transport import (
    CmConnection,
    ConnectFailed,
    ConnectRequest,
    Disconnected,
    Established,
    Event,
    QPInitAttr,
    QueuePair,
    Rejected,
)
from rocemu.verbs import AccessFlags
from rocemu.wire import RejReason

__all__ = ["Listener", "listen"]


class Listener:
    """Accepts connections on a CM port and advertises regions; iterate to get them.

    ``async for connection in listener`` gives each one that is established, if it still is.
    """

    def __init__(
        self,
        nic: Nic,
        port: int,
        pd: ProtectionDomain,
        expose: Iterable[MemoryRegion],
        *,
        access: AccessFlags = ALL_REMOTE,
        min_rnr_timer: int = 12,
    ) -> None:
        self.nic = nic
        self.pd = pd
        self.access = access
        self.min_rnr_timer = min_rnr_timer
        self.on_accept: Callable[[Connection], None] = lambda connection: None
        """Called with each connection when its queue pair is ready, to post receives at once."""
        self._exposed = list(expose)
        self._directory: MemoryRegion | None = None
        self._pending: dict[QueuePair, Connection] = {}
        self._live: dict[QueuePair, Connection] = {}
        self._fresh: deque[Connection] = deque()
        self._arrived = asyncio.Event()
        nic.device.cm.listen(port)
        nic.on_event.append(self._event)

    def expose(self, regions: Iterable[MemoryRegion]) -> None:
        """Advertise these regions, and no others, to who connects from now on."""
        self._exposed = list(regions)
        if self._directory is not None:
            self.nic.device.dereg_mr(self._directory)
            self._directory = None

    def advertisement(self) -> bytes:
        """Private data of a REP, at most 196 bytes; the directory is made when there is need."""
        regions = [RemoteRegion.of(mr) for mr in self._exposed]
        excess = without_room(regions)
        if not excess:
            return pack_regions(regions)
        if self._directory is None:
            content = bytearray(pack_regions(regions[-excess:]))
            self._directory = self.nic.device.reg_mr(
                self.pd, content, AccessFlags.IBV_ACCESS_REMOTE_READ, name=DIRECTORY_NAME
            )
        return pack_regions(regions[:-excess], RemoteRegion.of(self._directory))

    def _event(self, event: Event) -> None:
        if isinstance(event, ConnectRequest):
            self._accept(event.connection)
        elif isinstance(event, Established | Disconnected | ConnectFailed | Rejected):
            qp = event.connection.qp
            if qp is None:
                return
            if isinstance(event, Established) and qp in self._pending:
                connection = self._pending.pop(qp)
                self._live[qp] = connection
                self._fresh.append(connection)
                self._arrived.set()
            elif not isinstance(event, Established):
                over = self._pending.pop(qp, None) or self._live.pop(qp, None)
                if over is not None:
                    over.release()
                    if over in self._fresh:
                        self._fresh.remove(over)

    def _accept(self, cm: CmConnection) -> None:
        device = self.nic.device
        try:
            checked_mtu(self.nic.address, cm.peer_address, cm.path_mtu)
        except NetError:  # our packets of that size would not leave
            device.cm.reject(cm, RejReason.INVALID_MTU, now=self.nic.loop.time())
            return
        qp = device.create_qp(self.pd, QPInitAttr(self.nic.cq, self.nic.cq))
        connection = Connection(self.nic, qp, cm)
        self._pending[qp] = connection
        device.cm.accept(
            cm,
            qp,
            self.advertisement(),
            access=self.access,
            now=self.nic.loop.time(),
            min_rnr_timer=self.min_rnr_timer,
        )
        self.on_accept(connection)

    def __aiter__(self) -> AsyncIterator[Connection]:
        return self

    async def __anext__(self) -> Connection:
        while not self._fresh:
            self._arrived.clear()
            await self._arrived.wait()
        return self._fresh.popleft()


def listen(
    nic: Nic,
    port: int = DEFAULT_PORT,
    *,
    pd: ProtectionDomain | None = None,
    expose: Iterable[MemoryRegion] = (),
) -> Listener:
    """Accept whoever connects to a CM port; ``expose`` is advertised and belongs to ``pd``."""
    exposed = list(expose)
    domain = pd or (exposed[0].pd if exposed else nic.device.alloc_pd())
    return Listener(nic, port, domain, exposed)
