"""The emulated adapter: queue pairs, regions and completions, without socket, task or clock.

``receive`` takes datagrams whose ICRC was right, ``to_send`` gives packets that still need theirs;
``next_timer`` and ``handle_timer`` are its clock.  Everything else is ibverbs.
"""

import random
from collections import Counter, deque
from ipaddress import ip_address

from rocemu.protection import (
    Buffer,
    FastRegion,
    KeyGenerator,
    MemoryRegion,
    MemoryWindow,
    ProtectionDomain,
    ProtectionTable,
)
from rocemu.transport.attributes import QPInitAttr
from rocemu.transport.cm import ConnectionManager
from rocemu.transport.cq import CompletionQueue
from rocemu.transport.datagram import Datagram
from rocemu.transport.errors import QPError
from rocemu.transport.events import Drop, Event
from rocemu.transport.look import PacketLook
from rocemu.transport.profile import SPEC, Profile
from rocemu.transport.qp import QueuePair, source_port
from rocemu.transport.responder import AckPolicy
from rocemu.transport.srq import SharedReceiveQueue
from rocemu.verbs import AccessFlags, MWType, QPState, QPType, ReregFlags
from rocemu.wire import (
    BTH,
    CNP_OPCODE,
    DETH,
    Flow,
    Op,
    Packet,
    Transport,
    WireError,
    build,
    parse,
)

__all__ = ["GSI_QKEY", "GSI_QPN", "Device"]

#: The general services interface, where the connection manager lives ([IBTA] 3.5.11.1, 16.7).
GSI_QPN = 1
GSI_QKEY = 0x80010000
_FIRST_QPN = 0x11
_LAST_QPN = 0xFFFFFE


class Device:
    """One RDMA NIC at one IP address.

    ``rng`` draws QPNs' order, PSNs and communication IDs; seed it and everything but the keys
    repeats.  ``keys`` makes the lkeys and rkeys, from the operating system's CSPRNG by default.
    """

    def __init__(
        self,
        address: str,
        *,
        rng: random.Random | None = None,
        keys: KeyGenerator | None = None,
        profile: Profile = SPEC,
        ack_policy: AckPolicy = AckPolicy.REQUESTED,
        look: PacketLook | None = None,
    ) -> None:
        self.address = str(ip_address(address))
        self.rng = rng or random.SystemRandom()
        self.profile = profile
        self.ack_policy = ack_policy
        self.look = look or PacketLook()
        self.table = ProtectionTable(keys)
        self.cm = ConnectionManager(self)
        self.counters: Counter[str] = Counter()
        """Packets in by what became of them: ``received``, ``cnp``, and each reason of a drop."""
        self.qps: dict[int, QueuePair] = {}
        self._next_qpn = _FIRST_QPN
        self._next_pd = 1
        self._next_srq = 1
        self._active: dict[QueuePair, None] = {}  # in the order in which they asked
        self._mads: deque[tuple[Flow, bytes]] = deque()
        self._gsi_psn = 0
        self._events: deque[Event] = deque()

    # ------------------------------------------------------------------ verbs

    def alloc_pd(self) -> ProtectionDomain:
        """A new protection domain (``ibv_alloc_pd``)."""
        pd = ProtectionDomain(self._next_pd)
        self._next_pd += 1
        return pd

    def reg_mr(
        self,
        pd: ProtectionDomain,
        buffer: Buffer | int,
        access: AccessFlags,
        *,
        va: int | None = None,
        name: str = "",
        rkey: int | None = None,
    ) -> MemoryRegion:
        """Register memory (``ibv_reg_mr``): a buffer, or a length for new zeroed memory.

        ``va`` is the address that key holders use; it and ``rkey`` are chosen when None.  Raises
        RegistrationError.
        """
        mr = MemoryRegion(pd, buffer, access, va=va, name=name)
        self.table.register(mr, rkey=rkey)
        return mr

    def dereg_mr(self, mr: MemoryRegion) -> None:
        """Withdraw a region (``ibv_dereg_mr``); when it returns no byte moves by its keys."""
        self.table.deregister(mr)

    def rereg_mr(
        self,
        mr: MemoryRegion,
        flags: ReregFlags,
        *,
        pd: ProtectionDomain | None = None,
        buffer: Buffer | int | None = None,
        va: int | None = None,
        access: AccessFlags | None = None,
    ) -> None:
        """Change a region (``ibv_rereg_mr``); its keys are new ones afterwards."""
        self.table.reregister(mr, flags, pd=pd, buffer=buffer, va=va, access=access)

    def alloc_mr(self, pd: ProtectionDomain, max_length: int, *, name: str = "") -> FastRegion:
        """A region for fast registration (``ib_alloc_mr``), closed; end it by :meth:`dereg_mr`."""
        mr = FastRegion(pd, max_length, name=name)
        self.table.register(mr)
        return mr

    def alloc_mw(self, pd: ProtectionDomain, mw_type: MWType, *, name: str = "") -> MemoryWindow:
        """A memory window (``ibv_alloc_mw``), bound to nothing."""
        mw = MemoryWindow(pd, mw_type, name=name)
        self.table.alloc_mw(mw)
        return mw

    def dealloc_mw(self, mw: MemoryWindow) -> None:
        """End a window (``ibv_dealloc_mw``), bound or not."""
        self.table.dealloc_mw(mw)

    def create_cq(self, depth: int = 4096) -> CompletionQueue:
        """A completion queue with room for ``depth`` completions (``ibv_create_cq``)."""
        return CompletionQueue(depth)

    def create_srq(
        self, pd: ProtectionDomain, max_wr: int = 1024, max_sge: int = 32
    ) -> SharedReceiveQueue:
        """A shared receive queue (``ibv_create_srq``); queue pairs name it in QPInitAttr."""
        srq = SharedReceiveQueue(self, self._next_srq, pd, max_wr, max_sge)
        self._next_srq += 1
        return srq

    def create_qp(
        self, pd: ProtectionDomain, init: QPInitAttr, qp_num: int | None = None
    ) -> QueuePair:
        """A queue pair in RESET (``ibv_create_qp``); a free number is chosen when not given.

        Raises QPError for another type than RC or a number that is taken.
        """
        if init.qp_type is not QPType.IBV_QPT_RC:
            raise QPError(f"{init.qp_type.name}: only IBV_QPT_RC is supported")
        if qp_num is None:
            qp_num = self._free_qpn()
        elif qp_num in self.qps or not GSI_QPN < qp_num <= _LAST_QPN:
            raise QPError(f"QP number {qp_num:#x} is taken or not in 2 to {_LAST_QPN:#x}")
        qp = QueuePair(self, qp_num, pd, init)
        self.qps[qp_num] = qp
        pd.users += 1
        return qp

    def _free_qpn(self) -> int:
        while self._next_qpn in self.qps:
            self._next_qpn += 1
        self._next_qpn += 1
        return self._next_qpn - 1

    def destroy_qp(self, qp: QueuePair) -> None:
        """Remove a queue pair; its outstanding work vanishes without completions."""
        del self.qps[qp.qp_num]
        self._active.pop(qp, None)
        self.table.release_qp(qp.qp_num)
        qp.pd.users -= 1

    # ------------------------------------------------------------------ packets in

    def receive(self, datagrams: list[Datagram], now: float) -> None:
        """Process datagrams in order; whatever they hold, nothing is raised."""
        for datagram in datagrams:
            self.counters["received"] += 1
            try:
                packet = parse(datagram.payload)
            except WireError as error:
                if error.reason != "opcode" or not self._reserved_opcode(datagram):
                    self.drop(error.reason, str(error), datagram, _bth(datagram))
                continue
            self._dispatch(packet, datagram, now)

    def _dispatch(self, packet: Packet, datagram: Datagram, now: float) -> None:
        bth = packet.bth
        if bth.dest_qp == GSI_QPN:
            self._general_services(packet, datagram, now)
            return
        qp = self.qps.get(bth.dest_qp)
        info = packet.info
        if qp is None:
            self.drop("qpn", f"no QP {bth.dest_qp:#x}", datagram, bth)
        elif bth.opcode == CNP_OPCODE:
            self.counters["cnp"] += 1  # no congestion control here: counted, nothing slows down
        elif info.transport is not Transport.RC:
            self.drop("transport", f"{info.name} for an RC queue pair", datagram, bth)
        elif self._fits(qp, bth, datagram):
            qp.receive(packet, info, datagram, now)

    def _fits(self, qp: QueuePair, bth: BTH, datagram: Datagram) -> bool:
        """Whether a packet comes from the queue pair's peer with a P_Key that matches."""
        if qp.state in (QPState.IBV_QPS_RESET, QPState.IBV_QPS_INIT):
            detail = f"QP {qp.qp_num:#x} is in {qp.state.name}"
            self.drop("state", detail, datagram, bth)
        elif datagram.source != qp.attr.av.address or datagram.destination != self.address:
            detail = f"QP {qp.qp_num:#x} is connected to {qp.attr.av.address}"
            self.drop("address", detail, datagram, bth)
        elif not self.look.takes(bth.pkey):
            detail = f"P_Key {bth.pkey:#06x}, ours is {self.look.pkey:#06x}"
            self.drop("pkey", detail, datagram, bth)
        else:
            return True
        return False

    def _reserved_opcode(self, datagram: Datagram) -> bool:
        """True if a reserved opcode was an Invalid Request to a live RC queue pair, in order."""
        bth = BTH.unpack(datagram.payload)
        qp = self.qps.get(bth.dest_qp)
        return (
            bth.opcode >> 5 == Transport.RC >> 5
            and qp is not None
            and qp.state not in (QPState.IBV_QPS_RESET, QPState.IBV_QPS_INIT)
            and datagram.source == qp.attr.av.address
            and datagram.destination == self.address
            and self.look.takes(bth.pkey)
            and qp.reserved_opcode(bth.psn)
        )

    def _general_services(self, packet: Packet, datagram: Datagram, now: float) -> None:
        deth = packet.deth
        if packet.bth.opcode != Transport.UD | Op.SEND_ONLY or deth is None:
            self.drop("transport", f"{packet.info.name} for QP 1", datagram, packet.bth)
        elif deth.qkey != GSI_QKEY:
            self.drop("qkey", f"Q_Key {deth.qkey:#x} for QP 1", datagram, packet.bth)
        else:
            self.cm.receive(bytes(packet.payload), datagram, now)

    def drop(self, reason: str, detail: str, datagram: Datagram, bth: BTH | None = None) -> None:
        """Count a datagram that is discarded without an answer, and tell."""
        self.counters[reason] += 1
        self.emit(Drop(reason, detail, datagram, bth))

    def unreachable(self, address: str, now: float) -> None:
        """Nobody listens on UDP 4791 at ``address`` (ICMP port unreachable came from there)."""
        self.cm.unreachable(address)
        for qp in list(self.qps.values()):
            if qp.state is QPState.IBV_QPS_RTS and qp.attr.av.address == address:
                qp.requester.unreachable()

    # ------------------------------------------------------------------ packets out

    def activate(self, qp: QueuePair) -> None:
        """A queue pair may have something to send."""
        self._active[qp] = None

    def send_mad(self, destination: str, mad: bytes) -> None:
        """Queue a MAD for QP 1 at ``destination``."""
        look = self.look
        port = source_port(GSI_QPN, GSI_QPN)
        flow = Flow(self.address, destination, port, tos=look.tos, ttl=look.ttl)
        bth = look.bth(Transport.UD | Op.SEND_ONLY, GSI_QPN, self._gsi_psn)
        self._gsi_psn = self._gsi_psn + 1 & 0xFFFFFF
        packet = build(Packet(bth, mad, deth=DETH(GSI_QKEY, GSI_QPN)))
        self._mads.append((flow, packet))

    def to_send(self, now: float) -> list[tuple[Flow, list[bytes]]]:
        """What is to be sent now, a bounded batch a queue pair: call again until it is empty."""
        batches = [(flow, [packet]) for flow, packet in self._mads]
        self._mads.clear()
        for qp in list(self._active):
            packets = qp.transmit(now)
            if packets:
                batches.append((qp.flow, packets))
            else:
                self._active.pop(qp, None)
        return batches

    # ------------------------------------------------------------------ timers and events

    def next_timer(self) -> float | None:
        """When :meth:`handle_timer` is due, None for never."""
        deadlines = [qp.requester.deadline for qp in self.qps.values()]
        due = [when for when in (*deadlines, self.cm.next_timer()) if when is not None]
        return min(due, default=None)

    def handle_timer(self, now: float) -> None:
        """Do what is due: retries, ends of RNR waits, connection messages sent again."""
        for qp in list(self.qps.values()):
            qp.requester.handle_timer(now)
        self.cm.handle_timer(now)

    def emit(self, event: Event) -> None:
        """Queue an event for :meth:`next_event`."""
        self._events.append(event)

    def next_event(self) -> Event | None:
        """The oldest event that was not taken yet."""
        return self._events.popleft() if self._events else None


def _bth(datagram: Datagram) -> BTH | None:
    """As much of a bad packet as can be read."""
    return BTH.unpack(datagram.payload) if len(datagram.payload) >= BTH.SIZE else None
