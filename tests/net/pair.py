"""Two NICs in one process on loopback addresses of their own, and a peer made of a bare socket."""

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from rocemu.net import Connection, IcrcPolicy, Listener, Nic, connect, listen
from rocemu.protection import MemoryRegion
from rocemu.transport import AddressVector, Event, QPAttr, QPInitAttr, QueuePair
from rocemu.verbs import MTU, AccessFlags, QPAttrMask, QPState
from rocemu.wire import BTH, ICRC_SIZE, RETH, ROCE_PORT, Flow, Packet, build, parse, seal

PATIENCE = 20
ALL = (
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
)
READ_ONLY = AccessFlags.IBV_ACCESS_REMOTE_READ

_counter = itertools.count(1)
AnEvent = TypeVar("AnEvent", bound=Event)


def next_address() -> str:
    """A loopback address that no other test, here or in another run, uses at this time.

    All daemons use UDP 4791, so two of them need two addresses.
    """
    process, number = os.getpid(), next(_counter) % 250 + 1
    return f"127.{16 + process % 200}.{process // 200 % 256}.{number}"


class Log:
    """The events of a NIC, and a way to wait for one."""

    def __init__(self, nic: Nic) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        nic.on_event.append(self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def of(self, kind: type[AnEvent]) -> list[AnEvent]:
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for(self, kind: type[AnEvent], count: int = 1) -> list[AnEvent]:
        """At least ``count`` events of a kind."""
        async with asyncio.timeout(PATIENCE):
            while len(found := self.of(kind)) < count:
                self._news.clear()
                await self._news.wait()
        return found


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that tells nobody; fails when it never comes."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - for what has no event, such as a counter
            await asyncio.sleep(0.001)


@dataclass
class Tap:
    """Stands in for an endpoint capture: keeps what a NIC sent and received."""

    sent_packets: list[tuple[bytes, Flow]] = field(default_factory=list)
    received_packets: list[tuple[bytes, Flow, str | None]] = field(default_factory=list)

    def sent(
        self, sealed: bytes, flow: Flow, ip_id: int, when: int, comment: str | None = None
    ) -> None:
        self.sent_packets.append((sealed, flow))

    def received(
        self,
        datagram: bytes,
        flow: Flow,
        ip_id: int,
        when: int,
        comment: str | None = None,
        *,
        tos: int | None = None,
    ) -> None:
        self.received_packets.append((datagram, flow, comment))

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def opcodes(self) -> list[int]:
        """BTH opcodes of what was sent."""
        return [sealed[0] for sealed, _ in self.sent_packets]


def tapped(nic: Nic) -> Tap:
    tap = Tap()
    nic.capture = tap  # type: ignore[assignment]
    return tap


@dataclass
class Pair:
    """A connection between two NICs; ``rw`` and ``ro`` are regions of the server."""

    server: Nic
    client: Nic
    listener: Listener
    rw: MemoryRegion
    ro: MemoryRegion
    server_log: Log
    client_log: Log
    connection: Connection
    accepted: Connection


@asynccontextmanager
async def pair(size: int = 1 << 16) -> AsyncIterator[Pair]:
    """Both NICs, connected; what is left of the connection is taken down at the end."""
    async with await Nic.open(next_address()) as server, await Nic.open(next_address()) as client:
        pd = server.device.alloc_pd()
        rw = server.device.reg_mr(pd, size, ALL, name="rw")
        ro = server.device.reg_mr(pd, 4096, READ_ONLY, name="ro")
        listener = listen(server, pd=pd, expose=[rw, ro])
        logs = Log(server), Log(client)
        async with await connect(client, server.address) as connection:
            accepted = await anext(listener)
            yield Pair(server, client, listener, rw, ro, *logs, connection, accepted)
        async with asyncio.timeout(PATIENCE):
            await accepted.closed.wait()


# ---------------------------------------------------------------------- a peer of sockets alone

PEER_QPN, PEER_PSN = 0x77, 500
_M = QPAttrMask


@dataclass
class Stranger:
    """A bare peer: receives on UDP 4791 of its address, sends from a port of its own."""

    address: str
    to: str
    inbox: socket.socket
    outbox: socket.socket

    @property
    def flow(self) -> Flow:
        """As its packets travel."""
        return Flow(self.address, self.to, self.outbox.getsockname()[1])

    def send(self, datagram: bytes) -> None:
        self.outbox.sendto(datagram, (self.to, ROCE_PORT))

    def send_packet(self, packet: Packet) -> None:
        self.send(seal(build(packet), self.flow))

    async def receive(self) -> Packet:
        """The next packet that comes, whoever from."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE):
            data = await loop.sock_recv(self.inbox, 9216)
        return parse(data[:-ICRC_SIZE])


@asynccontextmanager
async def stranger(to: str) -> AsyncIterator[Stranger]:
    address = next_address()
    ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    try:
        for end, port in zip(ends, (ROCE_PORT, 0), strict=True):
            end.setblocking(False)
            # As the product's: ID 0 and DF, else nothing but solving finds the ICRC right.
            end.setsockopt(socket.IPPROTO_IP, 10, 2)
            end.bind((address, port))
        yield Stranger(address, to, *ends)
    finally:
        for end in ends:
            end.close()


def ready_qp(nic: Nic, peer: str, *, mtu: MTU = MTU.IBV_MTU_1024, **attributes: int) -> QueuePair:
    """A queue pair in RTS by hand: PSN 100 is expected from the peer, PSN 500 is its own first."""
    device = nic.device
    qp = device.create_qp(device.alloc_pd(), QPInitAttr(nic.cq, nic.cq))
    attr = QPAttr(
        qp_access_flags=ALL,
        av=AddressVector(peer),
        path_mtu=mtu,
        timeout=16,
        retry_cnt=7,
        rnr_retry=7,
        sq_psn=PEER_PSN,
        rq_psn=100,
        dest_qp_num=PEER_QPN,
    )
    for name, value in attributes.items():
        setattr(attr, name, value)
    steps = (
        (QPState.IBV_QPS_INIT, _M.IBV_QP_PKEY_INDEX | _M.IBV_QP_PORT | _M.IBV_QP_ACCESS_FLAGS),
        (
            QPState.IBV_QPS_RTR,
            _M.IBV_QP_AV
            | _M.IBV_QP_PATH_MTU
            | _M.IBV_QP_DEST_QPN
            | _M.IBV_QP_RQ_PSN
            | _M.IBV_QP_MAX_DEST_RD_ATOMIC
            | _M.IBV_QP_MIN_RNR_TIMER,
        ),
        (
            QPState.IBV_QPS_RTS,
            _M.IBV_QP_SQ_PSN
            | _M.IBV_QP_TIMEOUT
            | _M.IBV_QP_RETRY_CNT
            | _M.IBV_QP_RNR_RETRY
            | _M.IBV_QP_MAX_QP_RD_ATOMIC,
        ),
    )
    for state, mask in steps:
        attr.qp_state = state
        qp.modify(attr, mask | _M.IBV_QP_STATE)
    return qp


def write_packet(qp: QueuePair, mr: MemoryRegion, data: bytes, psn: int = 100) -> Packet:
    """An RDMA WRITE Only to the start of a region, asking for an ACK."""
    bth = BTH(0x0A, qp.qp_num, psn, ackreq=True)
    return Packet(bth, data, reth=RETH(mr.va, mr.rkey, len(data)))


@asynccontextmanager
async def served(
    icrc: IcrcPolicy = IcrcPolicy.VERIFY,
) -> AsyncIterator[tuple[Nic, Stranger, QueuePair, MemoryRegion, Log]]:
    """A NIC with a queue pair whose peer is a stranger, and a region that it may write."""
    async with await Nic.open(next_address(), icrc=icrc) as nic, stranger(nic.address) as peer:
        qp = ready_qp(nic, peer.address)
        mr = nic.device.reg_mr(qp.pd, 4096, ALL, name="rw")
        yield nic, peer, qp, mr, Log(nic)
