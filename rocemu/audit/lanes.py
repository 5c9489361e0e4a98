"""Lanes and conversations: what :mod:`rocemu.audit.conversations` puts packets into."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rocemu.wire import CmMessage, CmRep, CmReq, psn_add, psn_diff

__all__ = ["Conversation", "End", "Lane", "Pairing", "Placed"]

#: No sender is as far back as that: a greater step of the PSN is a new start.
WINDOW = 1 << 20


class Pairing(StrEnum):
    """How the two lanes of a conversation were found to belong together."""

    NONE = "one direction"
    CM = "connection manager"
    DETH = "source QP"
    BEHAVIOUR = "behaviour"


@dataclass(slots=True)
class End:
    """One end of a conversation."""

    address: str
    qpn: int | None = None
    """None as long as nothing says it."""

    def __str__(self) -> str:
        return f"{self.address} QP {'?' if self.qpn is None else f'{self.qpn:#x}'}"


@dataclass(slots=True, eq=False)
class Conversation:
    """Two ends; ``ends[0]`` is the active side of the connection, or who was seen first."""

    number: int
    ends: tuple[End, End]
    pairing: Pairing = Pairing.NONE
    req: CmReq | None = None
    """The exchange that set it up, where captured."""
    rep: CmRep | None = None
    packets: int = 0
    joined: int | None = None
    """The number of the conversation that this one turned out to be a part of."""


@dataclass(slots=True, eq=False)
class Lane:
    """All packets from one end of a conversation to the other."""

    conversation: Conversation
    sender: int
    """Which of ``conversation.ends`` sends: 0 or 1."""
    first_psn: int | None = None
    last_psn: int = 0
    """PSNs of the requests seen, those that READ responses may take with them."""
    newest_psn: int = 0
    """PSN of the newest request."""
    peer: Lane | None = None
    """The lane of the other direction, once it is known."""
    candidates: frozenset[Lane] = frozenset()
    """Lanes that asked for all that this one answered, while there are several."""

    def note_request(self, psn: int, count: int = 1) -> bool:
        """A request that takes ``count`` PSNs from ``psn`` on; whether it was seen before."""
        last = psn_add(psn, count - 1)
        ahead = psn_diff(psn, self.newest_psn)
        if self.first_psn is None or abs(ahead) > WINDOW:  # or a new start on the queue pair
            self.first_psn, self.last_psn, self.newest_psn = psn, last, psn
            return False
        if psn_diff(last, self.last_psn) > 0:
            self.last_psn = last
        if ahead > 0:
            self.newest_psn = psn
        elif psn_diff(psn, self.first_psn) < 0:
            self.first_psn = psn
            return False
        return ahead <= 0

    def asked_for(self, psn: int) -> bool:
        """Whether an answer with ``psn`` can be one to the requests of this lane."""
        return (
            self.first_psn is not None
            and psn_diff(psn, self.first_psn) >= 0
            and psn_diff(psn, self.last_psn) <= 0
        )


class Placed(NamedTuple):
    """Where a packet belongs."""

    conversation: Conversation
    lane: Lane
    cm: CmMessage | None = None
    """The connection manager's message, when it is one."""
    repeated: bool = False
    """A request whose PSN the lane had before: sent again."""

    @property
    def sender(self) -> int:
        """Which of ``conversation.ends`` sent it: 0 or 1."""
        return self.lane.sender
