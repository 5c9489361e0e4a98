"""Which exchange a packet belongs to, decided once per lane.

Requests of a
lane belong to the exchange of their queue pair.  Answers go to the requester's queue pair, and do
not say which queue pair they come from: the connection manager says it, or they are taken by the
exchange between the same addresses that has a request with their PSN.
"""

from collections.abc import Mapping

from rocemu.audit.conversations import Conversation, Conversations
from rocemu.audit.endings import close
from rocemu.audit.exchange import BEFORE, Exchange
from rocemu.audit.findings import Findings
from rocemu.audit.port_lanes import Key, PortLane, where
from rocemu.audit.sifting import LaneInfo
from rocemu.verbs import MTU, mtu_bytes
from rocemu.wire import (
    MAD_SIZE,
    PSN_MASK,
    CmAttribute,
    CmDreq,
    CmRej,
    CmRep,
    Packet,
    RejReason,
    Transport,
    WireError,
    pack_address,
    parse_mad,
)

__all__ = ["Pairing"]

MAX_EXCHANGES = 65_536
MAX_LANES = 262_144
_MOST_CANDIDATES = 256
_HALF = 0x800000
_WINDOW = 1 << 16  # PSNs
_TRANSPORTS = {0: Transport.RC, 1: Transport.UC, 3: Transport.XRC}
_CM_CLASS = 7
#: Messages of the connection manager that parse_mad does not read.
_OTHER_CM = (CmAttribute.SIDR_REQ, CmAttribute.SIDR_REP, CmAttribute.LAP, CmAttribute.APR)
_NO_TRANSPORT = -1  # an exchange before its first request, where nobody announced it


def _linux_port(first: int, second: int) -> int:
    """The UDP source port that Linux gives both directions of two queue pairs
    (rdma_calc_flow_label and rdma_flow_label_to_udp_sport)."""
    label = first * second
    label ^= label >> 20
    label ^= label >> 40
    label &= 0xFFFFF
    return 0xC000 | (label & 0x3FFF) ^ label >> 14


class Pairing:
    """Lanes and exchanges of a capture."""

    def __init__(self, findings: Findings) -> None:
        self.lanes: dict[int, PortLane] = {}
        """By the number that :attr:`Columns.lane` has for each."""
        self._findings = findings
        self._exchanges: dict[Key, Exchange] = {}
        self._keys: dict[Exchange, Key] = {}
        self._unbound: dict[tuple[bytes, bytes], dict[Exchange, None]] = {}
        self._bound: dict[Key, list[Exchange]] = {}
        """By the lane of their answers, source port aside."""
        self._ports: dict[Exchange, int] = {}
        self._made = 0
        self._conversations = Conversations()
        self._connected: dict[int, tuple[Exchange, Exchange]] = {}

    @property
    def made(self) -> int:
        """Exchanges so far."""
        return self._made

    def add_lanes(self, lanes: Mapping[int, LaneInfo]) -> None:
        """Lanes of a batch: those that are new are made; for lack of room all others forgotten."""
        if len(self.lanes.keys() | lanes.keys()) > MAX_LANES:
            for lane in self.lanes.values():
                self._close_lane(lane)
            self.lanes.clear()
        for number, info in lanes.items():
            if number not in self.lanes:
                self.lanes[number] = PortLane(*info)

    # requests

    def requests_of(self, lane: PortLane, opcode: int, psn: int) -> Exchange:
        """The exchange that requests of the lane belong to, the first of them with ``psn``."""
        x = self._exchanges.get(lane.key)
        if x is not None and self._begins_anew(x, lane, psn):
            self._close(lane.key)
            x = None
        if x is None or x.closed:
            x = self._make(lane.key, opcode & 0xE0)
            self._unbound.setdefault(lane.key[:2], {})[x] = None
            self._ports[x] = lane.port
            peers = self._bound.get(lane.key, [])
            if len(peers) == 1:  # the one whose answers go to this queue pair
                self._bind(x, self._keys[peers[0]][2])
        if x.transport == _NO_TRANSPORT:
            x.transport = opcode & 0xE0
        lane.requests = x
        return x

    def _begins_anew(self, x: Exchange, lane: PortLane, psn: int) -> bool:
        """Another requester on the same queue pair: a new source port, and the first PSN again."""
        return (
            lane.requests is None
            and x.next is not None
            and x.next > x.start
            and not (psn - x.start) & PSN_MASK
            and self._ports.get(x, lane.port) != lane.port
        )

    def _make(self, key: Key, transport: int) -> Exchange:
        if len(self._exchanges) >= MAX_EXCHANGES:
            self._close(next(iter(self._exchanges)))
        x = self._exchanges[key] = Exchange(where(key), self._findings, transport)
        self._keys[x] = key
        self._made += 1
        return x

    def _close(self, key: Key, time: int | None = None) -> None:
        x = self._exchanges.pop(key, None)
        if x is None:
            return
        if x.transport != Transport.UC:
            close(x, time)
        x.closed = True
        if x.reverse is not None:
            x.reverse.reverse = None
        self._keys.pop(x)
        self._ports.pop(x, None)
        self._unbound.get(key[:2], {}).pop(x, None)
        if x.requester_qpn is not None:
            answers = (key[1], key[0], x.requester_qpn)
            bound = self._bound.get(answers, [])
            if x in bound:
                bound.remove(x)
            if not bound:
                self._bound.pop(answers, None)

    # answers

    def answers_of(self, lane: PortLane, psn: int, number: int) -> Exchange | None:
        """The exchange that answers of the lane belong to; None when no request was seen."""
        if lane.tried != self._made:
            x = self._choose(lane, psn)
            if x is not None:
                lane.answers = x
                if x.requester_qpn is None:
                    self._bind(x, lane.qpn)
                return x
            lane.tried = self._made
        lane.orphan_count += 1
        lane.orphans = [*lane.orphans[:1], number]
        return None

    def _choose(self, lane: PortLane, psn: int) -> Exchange | None:
        """What speaks for an exchange, the strongest first: the port is Linux's for the two QPNs;
        the PSN was seen; it is waited for; an answer was asked for; requests have the same port;
        it is known to answer there; it waits longest."""
        candidates = list(self._bound.get(lane.key, []))
        unbound = self._unbound.get((lane.destination, lane.source), {})
        candidates += list(unbound)[-_MOST_CANDIDATES:]
        best: tuple[tuple[bool | int, ...], Exchange] | None = None
        for x in candidates:
            if x.next is None:
                continue
            near = x.next + (((psn - x.next + _HALF) & PSN_MASK) - _HALF)
            if not x.start - _WINDOW <= near <= x.top + _WINDOW:
                continue
            entry = x.find(near)
            rank = (
                _linux_port(lane.qpn, self._keys[x][2]) == lane.port,
                x.start - 1 <= near <= x.top,
                near > x.acked and entry is not None and x.fatal is None,
                entry is not None and entry.ackreq,
                self._ports.get(x) == lane.port,
                x.requester_qpn is not None,
                -entry.number if entry else -x.last_number,
            )
            if best is None or rank > best[0]:
                best = rank, x
        return None if best is None else best[1]

    def _bind(self, x: Exchange, requester_qpn: int) -> None:
        """Answers of ``x`` go to that queue pair; what it is asked for is the reverse."""
        source, destination, qpn = self._keys[x]
        x.requester_qpn = requester_qpn
        self._unbound.get((source, destination), {}).pop(x, None)
        back = (destination, source, requester_qpn)
        self._bound.setdefault(back, []).append(x)
        y = self._exchanges.get(back)
        if y is not None and y is not x and y.reverse is None and y.requester_qpn in (None, qpn):
            x.reverse, y.reverse = y, x
            if y.requester_qpn is None:
                self._bind(y, qpn)

    # the connection manager

    def on_mad(self, source: str, destination: str, packet: Packet, number: int) -> None:
        """A CM message, or whatever else goes to QP 1."""
        payload = bytes(packet.payload)
        try:
            message = parse_mad(payload)
        except WireError as error:
            attribute = int.from_bytes(payload[16:18], "big")
            other = payload[1:2] != bytes((_CM_CLASS,)) or attribute in _OTHER_CM
            if not other or len(payload) != MAD_SIZE:
                self._findings.add("cm-malformed", (number,), str(error))
            return
        conversation = self._conversations.place(source, destination, packet).conversation
        if isinstance(message, CmRep) and conversation.number not in self._connected:
            self._connect(conversation)
        elif isinstance(message, CmDreq):
            for x in self._connected.get(conversation.number, ()):
                x.disconnected = True
        elif isinstance(message, CmRej):
            what = ("REQ", "REP", "no message", "LAP")[message.message]
            names = [reason.name for reason in RejReason if reason == message.reason]
            text = f"{source} rejects {what}: reason {message.reason} {''.join(names)}"
            self._findings.add("cm-rejected", (number,), text.rstrip())

    def _connect(self, conversation: Conversation) -> None:
        """REQ and REP tell queue pairs, first PSNs, path MTU and resources of both ends."""
        req, rep = conversation.req, conversation.rep
        if req is None or rep is None:
            return
        active, passive = (pack_address(end.address) for end in conversation.ends)
        transport = _TRANSPORTS.get(req.transport_type, _NO_TRANSPORT)
        pair = []
        for key, qpn, psn, depth in (
            ((active, passive, rep.local_qpn), req.local_qpn, rep.starting_psn,
             rep.responder_resources),
            ((passive, active, req.local_qpn), rep.local_qpn, req.starting_psn,
             req.responder_resources),
        ):  # fmt: skip
            self._close(key)
            x = self._make(key, transport)
            x.begin(psn + BEFORE, fresh=True)
            x.depth = depth
            x.flow_control = req.end_to_end_flow_control and rep.end_to_end_flow_control
            if req.path_mtu in set(MTU):
                x.pmtu = mtu_bytes(req.path_mtu)
            pair.append((x, qpn))
        for x, qpn in pair:
            self._bind(x, qpn)
        while len(self._connected) >= MAX_EXCHANGES:
            self._connected.pop(next(iter(self._connected)))
        self._connected[conversation.number] = pair[0][0], pair[1][0]

    # the end

    def close(self, time: int) -> None:
        """Report what is left open in every exchange and lane, ``time`` being the capture's end."""
        for key in list(self._exchanges):
            self._close(key, time)
        for lane in self.lanes.values():
            self._close_lane(lane)

    def _close_lane(self, lane: PortLane) -> None:
        if lane.orphan_count:
            self._findings.add(
                "one-sided",
                lane.orphans,
                f"{lane.orphan_count} answers whose requests are not in the capture",
                str(lane),
            )
        if lane.cnps > 1 and lane.closest_cnps < 50_000:
            self._findings.add(
                "cnp-rate",
                lane.cnp_numbers,
                f"{lane.cnps} CNPs, the closest {lane.closest_cnps / 1000:g} us apart: DCQCN has "
                "one in 50 us",
                str(lane),
            )
