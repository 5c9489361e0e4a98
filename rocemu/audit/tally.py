"""Counts by conversation: what went each way, what was sent again, what was refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rocemu.audit.conversations import MAX_CONVERSATIONS, Conversation, Lane
from rocemu.audit.dissect import Dissected, Icrc
from rocemu.wire import AethKind, Transport, aeth_kind, describe_syndrome

__all__ = ["ConversationTally", "LaneTally", "Tally"]


@dataclass(slots=True)
class LaneTally:
    """One direction of a conversation."""

    lane: Lane
    packets: int = 0
    payload: int = 0
    """Bytes of messages: no headers, no pad."""
    requests: int = 0
    again: int = 0
    """Requests sent again."""
    icrc_wrong: int = 0
    problems: int = 0
    naks: Counter[str] = field(default_factory=Counter)
    """NAKs and RNR NAKs by their names."""
    transports: set[str] = field(default_factory=set)
    first: int = 0
    last: int = 0
    """Times of the first and last packet, nanoseconds since the first frame of the capture."""

    def add(self, packet: Dissected) -> None:
        self.first = packet.relative if not self.packets else self.first
        self.last = packet.relative
        self.packets += 1
        self.icrc_wrong += packet.icrc is Icrc.WRONG
        self.problems += bool(packet.problems)
        if packet.packet is None:
            return
        info, aeth = packet.packet.info, packet.packet.aeth
        self.transports.add(
            "CM" if packet.placed and packet.placed.cm else Transport(info.transport).name
        )
        self.payload += len(packet.packet.payload)
        self.requests += info.is_request
        self.again += packet.placed is not None and packet.placed.repeated
        if aeth is not None and aeth_kind(aeth.syndrome) in (AethKind.NAK, AethKind.RNR_NAK):
            self.naks[describe_syndrome(aeth.syndrome)] += 1


@dataclass(slots=True)
class ConversationTally:
    """Both directions; ``lanes[i]`` is what ``conversation.ends[i]`` sent, None for nothing."""

    conversation: Conversation
    lanes: list[LaneTally | None]

    @property
    def sent(self) -> list[LaneTally]:
        return [lane for lane in self.lanes if lane is not None]

    @property
    def naks(self) -> Counter[str]:
        return sum((lane.naks for lane in self.sent), Counter[str]())

    def total(self, name: str) -> int:
        """The sum of a number of both lanes."""
        return sum(getattr(lane, name) for lane in self.sent)

    @property
    def transports(self) -> str:
        names = set[str]().union(*(lane.transports for lane in self.sent))
        return "+".join(sorted(names - {"CNP"} or names)) or "?"

    @property
    def start(self) -> int:
        return min(lane.first for lane in self.sent)

    @property
    def duration(self) -> int:
        return max(lane.last for lane in self.sent) - self.start

    def record(self) -> dict[str, Any]:
        """The JSON object of ``rocemu inspect -q --json``."""
        both = ("packets", "payload", "requests", "again", "icrc_wrong", "problems")
        ends = self.conversation.ends
        return {
            "event": "conversation",
            "number": self.conversation.number,
            "ends": [{"address": end.address, "qp_num": end.qpn} for end in ends],
            "transport": self.transports,
            "pairing": self.conversation.pairing.value,
            "start": self.start / 1e9,
            "duration": self.duration / 1e9,
            **{name: [getattr(lane, name) if lane else 0 for lane in self.lanes] for name in both},
            "naks": dict(self.naks),
        }


class Tally:
    """Counts packets by lane; memory grows with the lanes, which are bounded."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, LaneTally] = {}
        self.left_out = 0
        """Packets of conversations beyond the bound."""

    def add(self, packet: Dissected) -> None:
        if packet.placed is None:
            return
        lane = packet.placed.lane
        tally = self._lanes.get(lane)
        if tally is None:
            if len(self._lanes) >= 2 * MAX_CONVERSATIONS:
                self.left_out += 1
                return
            tally = self._lanes[lane] = LaneTally(lane)
        tally.add(packet)

    def conversations(self) -> list[ConversationTally]:
        """By number, as they are paired now."""
        found: dict[int, ConversationTally] = {}
        for lane, tally in self._lanes.items():
            conversation = lane.conversation
            both = found.setdefault(
                conversation.number, ConversationTally(conversation, [None, None])
            )
            both.lanes[lane.sender] = tally
        return [found[number] for number in sorted(found)]
