"""One participant of a scenario against a live peer: real packets, real time.

The lines of the script for the other participant are the peer's business (another rocemu that plays
the same file as that one, a daemon, a kernel, an adapter); its packets are expected, whoever makes
them.  Regions of the peer have the addresses and R_Keys that the file gives them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rocemu.net.oneshot import OneShot
from rocemu.net.rules import Action
from rocemu.scenario.load import region_names
from rocemu.scenario.model import Participant, Scenario, ScenarioError
from rocemu.scenario.run import Player, Report
from rocemu.scenario.world import DeviceEnd, End, OnWire, World
from rocemu.transport import AddressVector
from rocemu.transport.qp import source_port

__all__ = ["play_live"]

#: Seconds that the first packet may take, and that are waited for more at the end.
_PATIENCE, _LINGER = 60.0, 0.5
#: Least time to look for packets, however near a timer is.
_LEAST = 1e-4


def play_live(
    scenario: Scenario,
    who: str,
    source: str,
    destination: str,
    on_wire: Callable[[OnWire], None] | None = None,
) -> Report:
    """Play the part of ``who`` from address ``source`` against ``destination``.

    Raises :class:`ScenarioError` for what cannot be played so, and NetError.
    """
    own, peer = scenario.left, scenario.right
    if who != own.name:
        own, peer = peer, own
    if any(rule.action is Action.CE and rule.direction == "tx" for rule in own.fault):
        raise ScenarioError(f"table {who!r}, key 'fault': ce tx cannot be done to a live peer")
    placed = [r.name for r in peer.mr if r.va is not None and r.rkey is not None]
    for step in scenario.steps:
        for whose, name in region_names(step, scenario):
            if step.who == who and whose == peer.name and name not in placed:
                where = f"table {whose!r}, key 'mr': region {name!r}"
                raise ScenarioError(f"{where}: a live peer's needs @VA/RKEY")
    own.address, peer.address = source, destination
    own.attr.av, peer.raw = AddressVector(destination, own.tos, own.ttl), False
    port = source_port(own.qpn, peer.qpn)
    with OneShot(source, destination, port=port, tos=own.tos, ttl=own.ttl) as sockets:
        world = _LiveWorld(scenario, who, sockets, on_wire)
        return Player(scenario, world, absent=peer.name).play()


@dataclass(frozen=True, slots=True)
class _PeerRegion:
    """A region of the peer, as the file gives it."""

    name: str
    va: int
    rkey: int


class _Peer(End):
    """The live peer: nothing of it is here but what the file says."""

    def __init__(self, spec: Participant) -> None:
        super().__init__(spec)
        self.regions = {
            region.name: _PeerRegion(region.name, region.va, region.rkey)
            for region in spec.mr
            if region.va is not None and region.rkey is not None
        }


class _LiveWorld(World):
    """The world of a live peer: its packets come from a socket, and time passes by itself."""

    def __init__(
        self,
        scenario: Scenario,
        who: str,
        sockets: OneShot,
        on_wire: Callable[[OnWire], None] | None,
    ) -> None:
        self._who = who
        super().__init__(scenario, on_wire)
        self._sockets = sockets
        self._own = self.end(who)
        self._to_right = self._own is self.ends[1]
        self._start = time.monotonic()
        self.begins_by = _PATIENCE

    def make_end(self, spec: Participant, scenario: Scenario) -> End:
        if spec.name != self._who:
            return _Peer(spec)
        return End(spec) if spec.raw else DeviceEnd(spec, scenario.seed)

    def carry(self, entry: OnWire) -> None:
        self.begins_by = 0.0
        self._sockets.send(entry.datagram)

    def advance(self, until: float) -> bool:
        timer = self._own.next_timer()
        due = until if timer is None else min(timer, until)
        left = max(due - self._clock(), _LEAST)
        arrival = next(self._sockets.arrivals(left), None)
        self.now = self._clock()
        if arrival is not None:
            self.begins_by = 0.0
            entry = OnWire(self.now, self._to_right, arrival.datagram, arrival.flow)
            self.note_on_wire(entry)
            self._own.arrive(entry, self.now)
        self._own.handle_timer(self.now)
        self.settle()
        return arrival is not None or self.now < until

    def run_until_quiet(self, limit: float) -> None:
        super().run_until_quiet(min(limit, _LINGER))

    def _clock(self) -> float:
        return time.monotonic() - self._start
