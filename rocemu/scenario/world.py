"""Two ends and the wire between them, in memory, on virtual time.

What leaves a device is sealed, meets the faults of its end, is *on the wire* and in the log from
then on, and arrives one latency later, where the ICRC is verified and the device takes it.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from rocemu.daemon.operations import LocalPlace
from rocemu.net.faults import FaultLine, Passing
from rocemu.net.rules import Direction
from rocemu.protection import MemoryRegion, SeededKeys
from rocemu.scenario.model import Participant, Scenario
from rocemu.transport import (
    WC,
    AsyncEvent,
    Datagram,
    Device,
    Drop,
    Event,
    PacketLook,
    QPInitAttr,
    QueuePair,
    Violation,
)
from rocemu.transport.attributes import TRANSITIONS
from rocemu.verbs import AsyncEventType, QPAttrMask, QPState
from rocemu.wire import BTH, ICRC_SIZE, Flow, seal, verify

__all__ = ["DeviceEnd", "End", "OnWire", "World"]

_CE = 3
_WAY = (QPState.IBV_QPS_INIT, QPState.IBV_QPS_RTR, QPState.IBV_QPS_RTS)


@dataclass(slots=True)
class OnWire:
    """A packet that left its sender."""

    when: float
    to_right: bool
    datagram: bytes
    """BTH to ICRC."""
    flow: Flow
    lost: bool = False
    comment: str | None = None

    @property
    def corrupt(self) -> bool:
        return not _fits(self.datagram, self.flow)


class Region(Protocol):
    """What a peer knows of a region."""

    @property
    def name(self) -> str: ...
    @property
    def va(self) -> int: ...
    @property
    def rkey(self) -> int: ...


class End:
    """A scripted peer; it takes what comes without a word."""

    def __init__(self, spec: Participant) -> None:
        self.spec = spec
        self.regions: Mapping[str, Region] = {}

    def arrive(self, entry: OnWire, now: float) -> None:
        """A packet is there."""

    def handle_timer(self, now: float) -> None:
        """Do what is due."""

    def next_timer(self) -> float | None:
        return None

    def leaving(self, now: float) -> list[Passing]:
        """What leaves now."""
        return []


class DeviceEnd(End):
    """An emulated device with one queue pair, and what it told so far."""

    def __init__(self, spec: Participant, seed: int) -> None:
        super().__init__(spec)
        self.device = device = Device(
            spec.address,
            rng=random.Random(seed),
            keys=SeededKeys(f"{spec.name} {seed}".encode()),
            profile=spec.profile,
            look=PacketLook(spec.tos, spec.ttl, spec.migreq, spec.pkey),
        )
        self.pd, other = device.alloc_pd(), device.alloc_pd()
        self.regions: dict[str, MemoryRegion] = {
            region.name: region.register(device, other if region.name in spec.other_pd else self.pd)
            for region in spec.mr
        }
        self.send_cq = device.create_cq(*([spec.send_cq] if spec.send_cq else []))
        self.recv_cq = device.create_cq(*([spec.recv_cq] if spec.recv_cq else []))
        init = QPInitAttr(self.send_cq, self.recv_cq, sq_sig_all=spec.sq_sig_all)
        self.qp: QueuePair = device.create_qp(self.pd, init, spec.qpn)
        for state in _WAY:
            if state <= spec.state:
                mask = TRANSITIONS[self.qp.state, state].required | QPAttrMask.IBV_QP_STATE
                self.qp.modify(replace(spec.attr, qp_state=state), mask)
        while device.next_event() is not None:
            pass  # the moves that the file asked for are no news
        self.incoming = FaultLine(spec.fault, Direction.RX, device, seed)
        self.outgoing = FaultLine(spec.fault, Direction.TX, device, seed)
        self.completions: deque[tuple[float, WC]] = deque()
        self.received: deque[tuple[float, WC]] = deque()
        self.events: deque[tuple[float, AsyncEventType]] = deque()
        self.violations: deque[tuple[float, Violation]] = deque()
        self.drops: deque[tuple[float, Drop]] = deque()

    # ------------------------------------------------------------------ packets

    def arrive(self, entry: OnWire, now: float) -> None:
        for passing in self.incoming.put(entry.datagram, entry.flow, now):
            self._take(passing, now)

    def _take(self, passing: Passing, now: float) -> None:
        if passing.lost:
            return
        data, flow = passing.datagram, passing.flow
        tos = flow.tos | (_CE if passing.ce else 0)
        datagram = Datagram(
            data[:-ICRC_SIZE], flow.source, flow.destination, flow.source_port, tos, flow.ttl
        )
        if len(data) < BTH.SIZE + ICRC_SIZE:
            self.device.drop("short", f"{len(data)} bytes", datagram)
        elif not _fits(data, flow):
            self.device.drop("icrc", "the ICRC is wrong", datagram)
        else:
            self.device.receive([datagram], now)
        self.note(now)

    def leaving(self, now: float) -> list[Passing]:
        found = []
        while batches := self.device.to_send(now):
            for flow, packets in batches:
                for packet in packets:
                    found += self.outgoing.put(seal(packet, flow), flow, now)
        self.note(now)
        return found + self.outgoing.due(now)

    # ------------------------------------------------------------------ time

    def next_timer(self) -> float | None:
        lines = (self.device, self.incoming, self.outgoing)
        times = [when for line in lines if (when := line.next_timer()) is not None]
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        for passing in self.incoming.due(now):
            self._take(passing, now)
        self.device.handle_timer(now)
        self.note(now)

    # ------------------------------------------------------------------ news

    def note(self, now: float) -> None:
        """Keep what the device tells, with the time; a CQ of given depth is left as it is."""
        while (event := self.device.next_event()) is not None:
            self._keep(event, now)
        if self.spec.send_cq is None and len(self.send_cq):
            self.poll(False, now)
        if self.spec.recv_cq is None and len(self.recv_cq):
            self.poll(True, now)

    def poll(self, receive: bool, now: float) -> None:
        """Take completions off a CQ."""
        cq, kept = (self.recv_cq, self.received) if receive else (self.send_cq, self.completions)
        while completions := cq.poll(64):
            kept.extend((now, completion) for completion in completions)

    def _keep(self, event: Event, now: float) -> None:
        match event:
            case AsyncEvent():
                self.events.append((now, event.type))
            case Violation():
                self.violations.append((now, event))
            case Drop():
                self.drops.append((now, event))


def _fits(datagram: bytes, flow: Flow) -> bool:
    """Whether the ICRC is right; of what has no room for one it is."""
    return len(datagram) < BTH.SIZE + ICRC_SIZE or bool(verify(datagram, flow)[0])


class World:
    """Both ends of a scenario, the packets between them, and the time."""

    begins_by = 0.0
    """Until when the first packet of all may take, whatever the limit of a line."""

    def __init__(self, scenario: Scenario, on_wire: Callable[[OnWire], None] | None = None) -> None:
        self.now = 0.0
        self.ends = [self.make_end(spec, scenario) for spec in (scenario.left, scenario.right)]
        self.wire: deque[OnWire] = deque()
        """Packets on the wire that no line of the script has taken yet."""
        self._latency = scenario.latency
        self._flying: list[tuple[float, int, OnWire]] = []
        self._count = 0
        self._on_wire = on_wire

    def make_end(self, spec: Participant, scenario: Scenario) -> End:
        """What a participant is in this world."""
        return End(spec) if spec.raw else DeviceEnd(spec, scenario.seed)

    def end(self, name: str | None) -> End:
        return next(end for end in self.ends if end.spec.name == name)

    def device_end(self, name: str | None) -> DeviceEnd:
        end = self.end(name)
        assert isinstance(end, DeviceEnd)
        return end

    def address_of(self, end: End, place: LocalPlace) -> int:
        return end.regions[place.name].va + place.offset & (1 << 64) - 1

    def put(self, to_right: bool, passing: Passing) -> None:
        """A packet leaves its sender."""
        flow = passing.flow
        if passing.ce:
            flow = replace(flow, tos=flow.tos | _CE)
        entry = OnWire(self.now, to_right, passing.datagram, flow, passing.lost, passing.comment)
        self.note_on_wire(entry)
        if not passing.lost:
            self.carry(entry)

    def note_on_wire(self, entry: OnWire) -> None:
        """A packet is seen; that of a scripted peer is no news."""
        if not self.ends[not entry.to_right].spec.raw:
            self.wire.append(entry)
        if self._on_wire is not None:
            self._on_wire(entry)

    def carry(self, entry: OnWire) -> None:
        """A packet is on its way to the other end."""
        self._count += 1
        heapq.heappush(self._flying, (self.now + self._latency, self._count, entry))

    def settle(self) -> None:
        """Let everything leave that is to leave now."""
        for end, to_right in zip(self.ends, (True, False), strict=True):
            for passing in end.leaving(self.now):
                self.put(to_right, passing)

    def advance(self, until: float) -> bool:
        """Go on to the next moment at which something happens; False if none is till ``until``."""
        times = [when for end in self.ends if (when := end.next_timer()) is not None]
        if self._flying:
            times.append(self._flying[0][0])
        if not times or min(times) > until:
            return False
        self.now = max(self.now, min(times))
        while self._flying and self._flying[0][0] <= self.now:
            entry = heapq.heappop(self._flying)[2]
            self.ends[entry.to_right].arrive(entry, self.now)
        for end in self.ends:
            end.handle_timer(self.now)
        self.settle()
        return True

    def run(self, until: float) -> None:
        """Let time pass until then."""
        while self.advance(until):
            pass
        self.now = max(self.now, until)

    def run_until_quiet(self, limit: float) -> None:
        """Let everything happen that still does, for no longer than ``limit`` seconds."""
        until = self.now + limit
        while self.advance(until):
            pass
