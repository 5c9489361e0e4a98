"""Which conversation a packet belongs to: the two directions of a queue pair, put together.

A RoCEv2 packet names the queue pair it goes to and not the one it comes from.  So what a capture
shows first are *lanes*: all packets from one address to one queue pair of another.  Two lanes make
a conversation.  Which two, is known

* from the connection manager where its exchange was captured: REQ and REP carry both QPNs;
* for UD from the DETH, which has the source QP;
* else by behaviour: an answer (ACK, READ response, atomic ACK) carries the PSN of the request that
  it answers, so its lane belongs with the one lane of the other direction whose requests have it.
  While there are several such lanes, the next answers narrow them down.

A lane that nothing was paired with is a conversation of one direction (a capture of one side, UC,
queue pairs between the same addresses whose PSNs never differ).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from rocemu.audit.lanes import WINDOW, Conversation, End, Lane, Pairing, Placed
from rocemu.wire import (
    GSI_QPN,
    CmRep,
    CmReply,
    CmReq,
    Operation,
    Packet,
    WireError,
    parse_mad,
)

__all__ = ["Conversation", "Conversations", "End", "Lane", "Pairing", "Placed"]

#: Conversations that are remembered; the one that was silent longest is forgotten for a new one.
MAX_CONVERSATIONS = 65_536
#: Unpaired lanes between two addresses that are looked at for an answer: the newest.
_SCANNED = 256
_LEAST_MTU = 256


_LaneKey = tuple[str, str, int, int | None]
"""Source, destination, destination QP, and for UD the source QP."""
_CommKey = tuple[str, str, int]
"""Active side, passive side, the active side's communication ID."""


@dataclass(slots=True)
class Conversations:
    """Puts packets into conversations, one packet after the other, in the order of the capture.

    A pairing by behaviour comes after the first packets of both lanes: their conversations are
    joined then, the later one into the earlier, and ``lane.conversation`` of both is the same from
    there on.  So keep the lane and ask it, or look at ``joined`` of the conversation that you had.
    """

    limit: int = MAX_CONVERSATIONS
    forgotten: int = 0
    """Lanes dropped for lack of room."""
    _lanes: OrderedDict[_LaneKey, Lane] = field(default_factory=OrderedDict)
    _connections: OrderedDict[_CommKey, tuple[Lane, Lane]] = field(default_factory=OrderedDict)
    _single: dict[tuple[str, str], dict[int, _LaneKey]] = field(default_factory=dict)
    """By addresses: the lanes that nothing is paired with, conversation number -> key."""
    _count: int = 0

    def place(self, source: str, destination: str, packet: Packet) -> Placed:
        """The conversation of ``packet``, and which end sent it."""
        if packet.deth is not None and packet.deth.source_qp == packet.bth.dest_qp == GSI_QPN:
            placed = self._place_mad(source, destination, packet)
            if placed is not None:
                return self._counted(placed)
        source_qp = None if packet.deth is None else packet.deth.source_qp
        lane = self.lane(source, destination, packet.bth.dest_qp, source_qp)
        repeated = source_qp is None and self._learn(source, destination, lane, packet)
        return self._counted(Placed(lane.conversation, lane, None, repeated))

    def place_unreadable(self, source: str, destination: str, dest_qp: int) -> Placed:
        """The conversation of a packet whose BTH can be read and no more."""
        lane = self.lane(source, destination, dest_qp)
        return self._counted(Placed(lane.conversation, lane))

    def lane(
        self, source: str, destination: str, dest_qp: int, source_qp: int | None = None
    ) -> Lane:
        """The lane from ``source`` to a queue pair of ``destination``; a new one when there is
        none.  ``source_qp`` for UD alone."""
        key = (source, destination, dest_qp, source_qp)
        lane = self._lanes.get(key)
        if lane is not None:
            self._lanes.move_to_end(key)
            return lane
        conversation = self._new(End(source, source_qp), End(destination, dest_qp))
        lane = self._add(key, Lane(conversation, 0))
        if source_qp is None:
            self._single.setdefault((source, destination), {})[conversation.number] = key
        else:
            conversation.pairing = Pairing.DETH
            back = (destination, source, source_qp, dest_qp)
            if back != key:
                lane.peer = self._add(back, Lane(conversation, 1, peer=lane))
        return lane

    def join(self, first: Lane, second: Lane, pairing: Pairing) -> Conversation:
        """Two lanes of opposite directions are one conversation, that of the lower number."""
        if second.conversation.number < first.conversation.number:
            first, second = second, first
        kept, gone = first.conversation, second.conversation
        sender = second.sender  # of its own conversation, where it is that of one direction
        kept.ends[first.sender].qpn = gone.ends[1 - sender].qpn
        kept.pairing = pairing
        kept.packets += gone.packets
        gone.joined = kept.number
        if gone.packets == 0 and gone.number == self._count - 1:
            self._count -= 1  # nobody has seen that number
        second.conversation, second.sender = kept, 1 - first.sender
        first.peer, second.peer = second, first
        first.candidates = second.candidates = frozenset()
        for conversation in (kept, gone):
            for singles in self._singles_of(conversation):
                singles.pop(conversation.number, None)
        return kept

    def _counted(self, placed: Placed) -> Placed:
        placed.conversation.packets += 1
        return placed

    def _new(self, first: End, second: End) -> Conversation:
        self._count += 1
        return Conversation(self._count - 1, (first, second))

    def _add(self, key: _LaneKey, lane: Lane) -> Lane:
        self._lanes[key] = lane
        while len(self._lanes) > 2 * self.limit:
            old_key, old = self._lanes.popitem(last=False)
            self.forgotten += 1
            singles = self._single.get(old_key[:2], {})
            singles.pop(old.conversation.number, None)
            if not singles:
                self._single.pop(old_key[:2], None)
        return lane

    def _singles_of(self, conversation: Conversation) -> list[dict[int, _LaneKey]]:
        first, second = (end.address for end in conversation.ends)
        return [
            self._single[key] for key in ((first, second), (second, first)) if key in self._single
        ]

    # by behaviour

    def _learn(self, source: str, destination: str, lane: Lane, packet: Packet) -> bool:
        """Take the packet's PSN in; whether it is a request that was seen before."""
        info = packet.info
        psn = packet.bth.psn
        if info.is_request:
            reads = info.operation is Operation.RDMA_READ and packet.reth is not None
            length = packet.reth.length if reads and packet.reth else 0
            return lane.note_request(psn, min(max(1, -(-length // _LEAST_MTU)), WINDOW))
        if info.operation is not Operation.CNP and lane.conversation.pairing is Pairing.NONE:
            asking = self._asking(destination, source, psn, lane.candidates) - {lane}
            lane.candidates = asking or lane.candidates
            if len(asking) == 1:
                (peer,) = asking
                self.join(lane, peer, Pairing.BEHAVIOUR)
        return False

    def _asking(
        self, source: str, destination: str, psn: int, candidates: frozenset[Lane]
    ) -> frozenset[Lane]:
        """The unpaired lanes whose requests have ``psn``, of ``candidates`` if there are any."""
        singles = self._single.get((source, destination), {})
        lanes: Iterable[Lane] = candidates or (
            self._lanes[key] for key in islice(reversed(singles.values()), _SCANNED)
        )
        return frozenset(
            lane for lane in lanes if lane.asked_for(psn) and lane.conversation.number in singles
        )

    # by the connection manager

    def _place_mad(self, source: str, destination: str, packet: Packet) -> Placed | None:
        try:
            message = parse_mad(packet.payload)
        except WireError:
            return None
        if isinstance(message, CmReq):
            lane = self._connect(source, destination, message)
            return Placed(lane.conversation, lane, message)
        lanes = self._connections.get((source, destination, message.local_comm_id))
        if lanes is not None:
            return Placed(lanes[0].conversation, lanes[0], message)
        if not isinstance(message, CmReply):
            return None
        lanes = self._connections.get((destination, source, message.remote_comm_id))
        if lanes is None:
            return None
        if isinstance(message, CmRep):
            self._reply(source, destination, lanes[0], message)
        return Placed(lanes[1].conversation, lanes[1], message)

    def _connect(self, source: str, destination: str, req: CmReq) -> Lane:
        key = (source, destination, req.local_comm_id)
        known = self._connections.get(key)
        if known is not None and known[0].conversation.req == req:
            return known[0]  # the REQ again
        conversation = self._new(End(source, req.local_qpn), End(destination))
        conversation.pairing, conversation.req = Pairing.CM, req
        lanes = Lane(conversation, 0), Lane(conversation, 1)
        lanes[0].peer, lanes[1].peer = lanes[1], lanes[0]
        self._connections[key] = lanes
        while len(self._connections) > self.limit:
            self._connections.popitem(last=False)
        self._replace((destination, source, req.local_qpn, None), lanes[1])
        return lanes[0]

    def _reply(self, source: str, destination: str, to_passive: Lane, rep: CmRep) -> None:
        conversation = to_passive.conversation
        if conversation.rep is not None:
            return  # the REP again
        conversation.rep = rep
        conversation.ends[1].qpn = rep.local_qpn
        self._replace((destination, source, rep.local_qpn, None), to_passive)

    def _replace(self, key: _LaneKey, lane: Lane) -> None:
        """A connection takes a queue pair over: what was seen of it before is another one's."""
        old = self._lanes.pop(key, None)
        if old is not None and key[:2] in self._single:
            self._single[key[:2]].pop(old.conversation.number, None)
        self._add(key, lane)
