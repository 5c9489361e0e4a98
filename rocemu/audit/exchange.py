"""The state of one direction of work: a requester's requests to a queue pair, and their answers.

A queue pair and its peer have two exchanges, one for each requester; sequence numbers of the two
have nothing to do with each other.  The state is what the *capture* shows of the requester: which
PSNs were sent and not answered yet.  :mod:`rocemu.audit.requests` and :mod:`rocemu.audit.answers`
move it on.

PSNs are held unwrapped: the first one seen as it is, later ones counted on from there beyond 2^24,
so that they compare as numbers do.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from rocemu.audit.findings import Findings
from rocemu.wire import PSN_MASK

__all__ = [
    "BEFORE",
    "MOMENT",
    "MTUS",
    "Burst",
    "Exchange",
    "Gap",
    "Nak",
    "NakKind",
    "Pending",
    "RawSent",
    "Sent",
]

#: What the first PSN is moved up by, so that what lies before it is no negative number.
BEFORE = 1 << 24
MTUS = (4096, 2048, 1024, 512, 256)
#: ns: what comes twice, or late, within so much did so on its way; no timeout is as short.
MOMENT = 1_000_000

RawSent = tuple[int, int, int, int, int, int, int, bool, int, int | None, int]
"""A :class:`Sent` as it is kept: a tuple is made three times as fast as anything with names."""


class Sent(NamedTuple):
    """A request that was sent; :class:`RawSent` with names."""

    psn: int
    last: int
    """The PSN of its last response; ``psn`` for all but READs."""
    number: int
    time: int
    opcode: int
    messages: int
    """Messages complete with it."""
    icrc: int
    ackreq: bool
    open: int
    """Kind of message that is under way behind it, as ``Exchange.open``."""
    left: int | None
    """Bytes of that message still to come, as ``Exchange.left``."""
    payload: int


@dataclass(slots=True)
class Pending:
    """A READ, atomic, FLUSH or ATOMIC WRITE whose answer is not complete."""

    psn: int
    last: int
    number: int
    opcode: int
    length: int
    va: int
    messages: int
    expected: int
    """The PSN of the response that comes next."""
    begin: int
    """The PSN of the first response to the request as it was sent last: a READ may be resumed."""


class NakKind(StrEnum):
    """Why a requester goes back."""

    SEQUENCE = "sequence"
    RNR = "RNR"
    IMPLIED = "implied"
    FATAL = "fatal"


@dataclass(slots=True)
class Nak:
    """The last demand, or refusal, that the requester has not answered."""

    kind: str
    psn: int
    number: int
    time: int
    wait: int = 0
    """Nanoseconds that an RNR NAK asks for."""
    resent: bool = False


@dataclass(slots=True)
class Gap:
    """PSNs that were passed over."""

    first: int
    last: int
    before: int
    """The packet before the gap, ..."""
    number: int
    """... and the one behind it."""
    time: int = 0
    damaged: int = 0
    """A packet of the gap that was there, with a wrong ICRC."""

    @property
    def packets(self) -> tuple[int, ...]:
        return tuple(n for n in (self.before, self.damaged, self.number) if n)

    def __str__(self) -> str:
        text = f"{_range(self.first, self.last)} missing before packet {self.number}"
        return f"{text} (packet {self.damaged} has a wrong ICRC)" if self.damaged else text


@dataclass(slots=True)
class Burst:
    """Requests sent again, one after the other."""

    first: int
    last: int
    numbers: tuple[int, int]
    why: str
    origin: int
    """The packet that was sent first with that PSN; 0 when not known."""
    count: int = 1

    def extend(self, psn: int, number: int) -> None:
        self.last, self.numbers = psn, (self.numbers[0], number)
        self.count += 1

    def __str__(self) -> str:
        return f"{_range(self.first, self.last)} sent again, {self.why}"


def _range(first: int, last: int) -> str:
    text = f"PSN {first & PSN_MASK:#08x}"
    return text if first == last else f"{text} to {last & PSN_MASK:#08x}"


@dataclass(slots=True, eq=False)
class Exchange:
    """Requests of one queue pair to another, and the answers."""

    where: str
    """``10.0.0.1 -> 10.0.0.2 QP 0x11``."""
    findings: Findings
    transport: int
    """Bits 7:5 of its opcodes."""
    requester_qpn: int | None = None
    """Where answers go; None as long as it is not known."""
    reverse: "Exchange | None" = None
    """What the responder's queue pair requests of the requester's, where both are known."""
    closed: bool = False
    disconnected: bool = False
    next: int | None = None
    """The PSN of the next request; None before the first."""
    start: int = 0
    """The first PSN that is known to have been asked for."""
    high: int = 0
    """While requests are sent again: the PSN behind all that were sent before; else 0."""
    open: int = -1
    """The kind of message under way: 1 SEND, 2 WRITE, 0 none, -1 not known."""
    left: int | None = None
    """Bytes of a WRITE still to come; None when not known."""
    messages: int = 0
    """Messages complete with the requests up to ``next``, since the first one seen."""
    most: int = 0
    """The most that ``messages`` ever was: going back lowers it."""
    base: int | None = None
    """What the responder's MSN is ahead of ``messages``; None when not known."""
    acked: int = -1
    """Everything up to here is answered."""
    acked_by: int = 0
    """The packet that said so."""
    behind: RawSent | None = None
    """The last of the requests that are answered."""
    pmtu: int | None = None
    loose: Pending | None = None
    """A READ, the last request so far, of which the number of PSNs is not known for lack of a
    PMTU; ``next`` is the least it can be."""
    depth: int | None = None
    """READs and atomics that the responder serves at once, by the connection manager."""
    flow_control: bool = False
    """Whether both ends want end-to-end flow control, by the connection manager."""
    credit_limit: int | None = None
    unlimited: bool | None = None
    """Whether the last ACK gave no limit of credits."""
    sent: deque[RawSent] = field(default_factory=deque)
    reads: deque[Pending] = field(default_factory=deque)
    old: dict[int, RawSent] = field(default_factory=dict)
    """While requests are sent again: those sent before, by PSN."""
    gaps: list[Gap] = field(default_factory=list)
    burst: Burst | None = None
    nak: Nak | None = None
    fatal: Nak | None = None
    unsent: tuple[int, int] | None = None
    """PSN and number of an answer to something that was not sent so far."""
    far: int = -1
    """The PSN that would follow one far away from all others."""
    dead: int = 0
    """The fatal NAK with which the queue pair that sends these requests went into error."""
    watch: bool = False
    """Something is not as usual: requests go the long way."""
    first_sent: int = 0
    """When the oldest request without an answer was sent for the first time, if it was again."""
    answers: int = 0
    last_number: int = 0
    damaged: dict[int, int] = field(default_factory=dict)
    """PSN (24 bits) -> packet of requests that were dropped for a wrong ICRC, the last few."""

    def report(self, code: str, packets: tuple[int, ...], text: str) -> None:
        self.findings.add(code, packets, text, self.where)

    @property
    def top(self) -> int:
        """The PSN behind all that were ever sent."""
        return max(self.next or 0, self.high)

    def begin(self, psn: int, *, fresh: bool = False) -> int:
        """The first request has ``psn``; ``fresh``: the queue pair has just been connected."""
        self.next = self.start = psn
        self.acked = psn - 1
        self.open = 0 if fresh else -1
        self.base = 0 if fresh else None
        self.messages = self.most = 0
        return psn

    def restart(self, psn: int) -> None:
        """The queue pair begins anew, with ``psn``."""
        for memory in (self.sent, self.reads, self.gaps, self.old, self.damaged):
            memory.clear()
        self.nak = self.fatal = self.unsent = self.loose = self.behind = None
        self.left = self.credit_limit = self.burst = None
        self.high = self.answers = self.first_sent = 0
        self.far = -1
        self.begin(psn)
        self.settle()

    def settle(self) -> None:
        """``watch`` by what there is to watch."""
        watched = self.high or self.fatal or self.unsent or self.dead or self.loose or self.burst
        self.watch = bool(watched)

    def report_unsent(self) -> None:
        if self.unsent is not None:
            psn, number = self.unsent
            text = f"an answer to PSN {psn & PSN_MASK:#08x}, which was not sent before"
            self.report("ack-unsent", (number,), text)

    def find(self, psn: int) -> Sent | None:
        """The unanswered request that ``psn`` belongs to."""
        for raw in reversed(self.sent):
            if raw[0] <= psn:
                return Sent(*raw) if psn <= raw[1] else None
        return None

    def pending(self, psn: int) -> Pending | None:
        """The READ or atomic whose answer ``psn`` belongs to."""
        for pending in self.reads:
            if pending.psn <= psn <= pending.last:
                return pending
        return None

    def kill_reverse(self, number: int) -> None:
        """The responder's queue pair went into error by the NAK ``number``."""
        if self.reverse is not None:
            self.reverse.dead, self.reverse.watch = number, True
