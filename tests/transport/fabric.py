"""Two devices in memory on virtual time; the link between them does what a test tells it to."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from rocemu.protection import MemoryRegion, SeededKeys
from rocemu.transport import (
    SGE,
    SPEC,
    WC,
    AckPolicy,
    AddressVector,
    AsyncEvent,
    Datagram,
    Device,
    Event,
    Profile,
    QPAttr,
    QPInitAttr,
    QueuePair,
    RecvWR,
    SendWR,
)
from rocemu.verbs import (
    MTU,
    AccessFlags,
    AsyncEventType,
    QPAttrMask,
    QPState,
    SendFlags,
    WCStatus,
    WROpcode,
)
from rocemu.wire import BTH, Flow, Packet, build, parse

ALL = (
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
)
LATENCY = 10e-6
A_ADDRESS, B_ADDRESS = "192.0.2.1", "192.0.2.2"

M = QPAttrMask
TO_INIT = M.IBV_QP_STATE | M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS
TO_RTR = (
    M.IBV_QP_STATE
    | M.IBV_QP_AV
    | M.IBV_QP_PATH_MTU
    | M.IBV_QP_DEST_QPN
    | M.IBV_QP_RQ_PSN
    | M.IBV_QP_MAX_DEST_RD_ATOMIC
    | M.IBV_QP_MIN_RNR_TIMER
)
TO_RTS = (
    M.IBV_QP_STATE
    | M.IBV_QP_SQ_PSN
    | M.IBV_QP_TIMEOUT
    | M.IBV_QP_RETRY_CNT
    | M.IBV_QP_RNR_RETRY
    | M.IBV_QP_MAX_QP_RD_ATOMIC
)


@dataclass
class Sent:
    """A packet that was put on the link; ``delivered`` counts its copies that arrived."""

    when: float
    source: str
    packet: Packet
    payload: bytes
    delivered: int


class Side:
    """One end: a device with a PD, a CQ for each direction, one QP and one large region."""

    def __init__(
        self,
        address: str,
        seed: int,
        size: int = 1 << 16,
        *,
        profile: Profile = SPEC,
        ack_policy: AckPolicy = AckPolicy.REQUESTED,
        with_srq: bool = False,
    ) -> None:
        self.device = Device(
            address,
            rng=random.Random(seed),
            keys=SeededKeys(f"{address} {seed}".encode()),
            profile=profile,
            ack_policy=ack_policy,
        )
        self.pd = self.device.alloc_pd()
        self.send_cq, self.recv_cq = self.device.create_cq(), self.device.create_cq()
        self.mr = self.device.reg_mr(self.pd, size, ALL, name="all")
        self.srq = self.device.create_srq(self.pd) if with_srq else None
        init = QPInitAttr(self.send_cq, self.recv_cq, srq=self.srq)
        self.qp: QueuePair = self.device.create_qp(self.pd, init)
        self.events: list[Event] = []

    def sge(self, offset: int = 0, length: int = 0, mr: MemoryRegion | None = None) -> SGE:
        mr = mr or self.mr
        return SGE(mr.va + offset, length, mr.lkey)

    def post(
        self,
        opcode: WROpcode,
        *sges: SGE,
        wr_id: int = 1,
        to: tuple[MemoryRegion, int] | None = None,
        flags: SendFlags = SendFlags.IBV_SEND_SIGNALED,
        **fields: object,
    ) -> None:
        """Post a send; ``to`` is the remote region and an offset in it."""
        if to is not None:
            fields = {"remote_addr": to[0].va + to[1], "rkey": to[0].rkey} | fields
        self.qp.post_send(SendWR(wr_id, opcode, sges, flags, **fields))  # type: ignore[arg-type]

    def recv(self, wr_id: int, *sges: SGE) -> None:
        self.qp.post_recv(RecvWR(wr_id, sges))

    def sends(self) -> list[WC]:
        return self.send_cq.poll(10000)

    def receives(self) -> list[WC]:
        return self.recv_cq.poll(10000)

    def drain_events(self) -> None:
        while (event := self.device.next_event()) is not None:
            self.events.append(event)

    def async_events(self) -> list[AsyncEventType]:
        self.drain_events()
        return [event.type for event in self.events if isinstance(event, AsyncEvent)]


def statuses(completions: list[WC]) -> list[tuple[int, WCStatus]]:
    return [(wc.wr_id, wc.status) for wc in completions]


def packet(
    opcode: int, psn: int, payload: bytes = b"", *, ackreq: bool = True, **headers: object
) -> bytes:
    """A packet of our own making for a side's queue pair, which is always number 0x11."""
    return build(Packet(BTH(opcode, 0x11, psn, ackreq=ackreq), payload, **headers))  # type: ignore[arg-type]


def drop(*numbers: int, source: str = A_ADDRESS) -> "Link":
    """A link that loses the given packets of one side, counted from 0."""
    seen = [0]

    def link(sent: Sent) -> tuple[float, ...]:
        if sent.source != source:
            return (LATENCY,)
        seen[0] += 1
        return () if seen[0] - 1 in numbers else (LATENCY,)

    return link


#: Called for every packet; gives the delays after which copies arrive: () drops it.
Link = Callable[[Sent], tuple[float, ...]]


@dataclass
class Fabric:
    """Side ``a`` and side ``b``, connected; ``run`` goes on until nothing is left to happen."""

    a: Side
    b: Side
    link: Link = lambda sent: (LATENCY,)
    now: float = 0.0
    log: list[Sent] = field(default_factory=list)
    _flying: list[tuple[float, int, Side, Datagram]] = field(default_factory=list)
    _count: int = 0

    def run(self, limit: float = 60.0) -> None:
        """Let packets fly and timers fire until all is quiet or ``limit`` seconds have passed."""
        end = self.now + limit
        while True:
            self._collect()
            when = [f[0] for f in self._flying]
            for side in (self.a, self.b):
                timer = side.device.next_timer()
                if timer is not None:
                    when.append(timer)
            if not when:
                return
            if min(when) > end:
                self.now = end
                return
            self.now = max(self.now, min(when))
            due = sorted(f for f in self._flying if f[0] <= self.now)
            self._flying = [f for f in self._flying if f[0] > self.now]
            for _, _, side, datagram in due:
                side.device.receive([datagram], self.now)
            for side in (self.a, self.b):
                side.device.handle_timer(self.now)

    def _collect(self) -> None:
        for side, peer in ((self.a, self.b), (self.b, self.a)):
            while batches := side.device.to_send(self.now):
                for flow, packets in batches:
                    for payload in packets:
                        self._put(side, peer, flow, payload)

    def _put(self, side: Side, peer: Side, flow: Flow, payload: bytes) -> None:
        sent = Sent(self.now, flow.source, parse(payload), payload, 0)
        delays = self.link(sent)
        sent.delivered = len(delays)
        self.log.append(sent)
        if flow.destination != peer.device.address:
            return
        for delay in delays:
            self._count += 1
            datagram = Datagram(payload, flow.source, flow.destination, flow.source_port)
            self._flying.append((self.now + delay, self._count, peer, datagram))

    def inject(self, payload: bytes, to: Side | None = None) -> None:
        """Hand a packet of our own making to a side as if its peer had sent it."""
        to = to or self.b
        source = self.a if to is self.b else self.b
        datagram = Datagram(payload, source.device.address, to.device.address, 50000)
        to.device.receive([datagram], self.now)

    def wire(self, side: Side) -> list[tuple[int, int]]:
        """(opcode, PSN) of everything that a side sent."""
        return [
            (s.packet.bth.opcode, s.packet.bth.psn)
            for s in self.log
            if s.source == side.device.address
        ]

    def syndromes(self, side: Side) -> list[tuple[int, int, int]]:
        """(syndrome, PSN, MSN) of every AETH that a side sent."""
        return [
            (s.packet.aeth.syndrome, s.packet.bth.psn, s.packet.aeth.msn)
            for s in self.log
            if s.source == side.device.address and s.packet.aeth is not None
        ]


def connect(
    *,
    seed: int = 1,
    mtu: MTU = MTU.IBV_MTU_1024,
    a_psn: int = 0x100,
    b_psn: int = 0x800200,
    size: int = 1 << 16,
    link: Link | None = None,
    a_attr: dict[str, object] | None = None,
    b_attr: dict[str, object] | None = None,
    profile: Profile = SPEC,
    ack_policy: AckPolicy = AckPolicy.REQUESTED,
    with_srq: bool = False,
) -> Fabric:
    """Two sides whose queue pairs are in RTS; ``a_attr`` and ``b_attr`` override attributes.

    Both sides have the profile; ACK policy and SRQ are those of side ``b``.
    """
    a = Side(A_ADDRESS, seed, size, profile=profile)
    b = Side(B_ADDRESS, seed + 1, size, profile=profile, ack_policy=ack_policy, with_srq=with_srq)
    for me, peer, mine, theirs, extra in (
        (a, b, a_psn, b_psn, a_attr or {}),
        (b, a, b_psn, a_psn, b_attr or {}),
    ):
        values: dict[str, object] = {
            "qp_access_flags": ALL,
            "av": AddressVector(peer.device.address),
            "path_mtu": mtu,
            "dest_qp_num": peer.qp.qp_num,
            "rq_psn": theirs,
            "sq_psn": mine,
            "timeout": 14,
            "retry_cnt": 7,
            "rnr_retry": 7,
            "min_rnr_timer": 12,
            **extra,
        }
        attr = QPAttr(**values)  # type: ignore[arg-type]
        for state, mask in (
            (QPState.IBV_QPS_INIT, TO_INIT),
            (QPState.IBV_QPS_RTR, TO_RTR),
            (QPState.IBV_QPS_RTS, TO_RTS),
        ):
            attr.qp_state = state
            me.qp.modify(attr, mask)
        me.drain_events()
        me.events.clear()
    fabric = Fabric(a, b)
    if link is not None:
        fabric.link = link
    return fabric
