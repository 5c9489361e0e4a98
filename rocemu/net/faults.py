"""Faults on purpose: what becomes of packets under rules.

A packet passes the rules of its direction in their order, and every one that selects it does its
part; what was dropped is gone for the rules behind.  A :class:`FaultLine` has no clock and no
socket: packets and ``now`` go in, copies come out, at once or when they are due.  Chances are drawn
from the seed, for each rule on its own, so that the same packets meet the same faults whatever
happens in the other direction.
"""

import heapq
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rocemu.net.rules import Action, Direction, FaultRule, PsnRange
from rocemu.transport import Device, QueuePair
from rocemu.wire import BTH, ICRC_SIZE, OPCODES, Flow, Op, aeth_kind, psn_diff, verify

__all__ = ["LONGEST_HOLD", "FaultLine", "Passing", "wrong_icrc"]

#: Seconds after which a packet that was to go on behind others goes on without them.
LONGEST_HOLD = 0.01


@dataclass(slots=True)
class Passing:
    """A packet that comes out of a line."""

    datagram: bytes
    """BTH to ICRC."""
    flow: Flow
    lost: bool = False
    """It goes no further, and is here for the capture to show."""
    ce: bool = False
    """It is to be marked congestion experienced."""
    comment: str | None = None
    """What was done to it: ``fault: dropped by 'drop tx once'``."""


@dataclass(order=True, slots=True)
class _Waiting:
    """A packet that goes on at ``due``, or behind ``behind`` others if that is earlier."""

    due: float
    number: int
    passing: Passing = field(compare=False)
    behind: int = field(default=0, compare=False)


@dataclass(slots=True)
class _State:
    """A rule at work."""

    rule: FaultRule
    rng: random.Random
    selected: int = 0
    spent: bool = False
    done: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often for each DestQP and PSN, where the rule limits that."""


class FaultLine:
    """One direction of a device's wire under the rules that are for it.

    ``seed`` None: chances that do not repeat.  What was done is counted in the device's counters
    as ``fault_drop``, ``fault_dup`` and so on.
    """

    def __init__(
        self, rules: Iterable[FaultRule], direction: Direction, device: Device, seed: int | None
    ) -> None:
        self._direction = direction
        self._device = device
        self._states = [
            _State(rule, random.Random(None if seed is None else f"{seed} {index} {rule.text}"))
            for index, rule in enumerate(rules)
            if rule.direction is direction
        ]
        self._waiting: list[_Waiting] = []
        self._count = 0

    @property
    def quiet(self) -> bool:
        """Whether there is no rule for this direction, so that everything just passes."""
        return not self._states

    def put(self, datagram: bytes, flow: Flow, now: float) -> list[Passing]:
        """A packet (BTH to ICRC) enters; gives what goes on at once, in order.

        ``flow`` as the packet goes: source is the sender.
        """
        if not self._states:
            return [Passing(datagram, flow)]
        notes: list[str] = []
        copied: list[str] = []
        data, copies, delay, behind, ce = datagram, 1, 0.0, 0, False
        for state in self._states:
            if not self._selects(state, datagram, flow):
                continue
            rule = state.rule
            self._device.counters[f"fault_{rule.action.replace('-', '_')}"] += 1
            match rule.action:
                case Action.DROP:
                    notes.append(f"dropped by '{rule.text}'")
                    return [Passing(data, flow, lost=True, ce=ce, comment=_comment(notes))]
                case Action.DUP:
                    copies += int(rule.amount)
                case Action.DELAY:
                    delay += rule.amount
                case Action.REORDER:
                    behind = max(behind, int(rule.amount))
                case Action.CORRUPT:
                    data = _flip(data, rule.byte, state.rng)
                case Action.BAD_ICRC:
                    data = wrong_icrc(data, flow)
                case Action.CE:
                    ce = True
            where = copied if rule.action is Action.DUP else notes
            where.append(f"{_DONE[rule.action]} by '{rule.text}'")
        overtaken = self._overtake()
        passing = [Passing(data, flow, ce=ce, comment=_comment(notes))]
        passing += (
            Passing(data, flow, ce=ce, comment=_comment(notes + copied)) for _ in range(copies - 1)
        )
        if delay or behind:
            for each in passing:
                self._wait(each, now + (delay or LONGEST_HOLD), behind)
            passing = []
        return passing + overtaken

    def due(self, now: float) -> list[Passing]:
        """What waited and goes on now, in order."""
        passing = []
        while self._waiting and self._waiting[0].due <= now:
            passing.append(heapq.heappop(self._waiting).passing)
        return passing

    def next_timer(self) -> float | None:
        """When :meth:`due` has something next, None for never."""
        return self._waiting[0].due if self._waiting else None

    # ------------------------------------------------------------------ selection

    def _selects(self, state: _State, datagram: bytes, flow: Flow) -> bool:
        """Whether a rule acts on a packet; counts it where the rule counts."""
        rule = state.rule
        if state.spent or not self._matches(rule, datagram, flow):
            return False
        state.selected += 1
        if rule.nth is not None and not rule.nth[0] <= state.selected <= rule.nth[1]:
            return False
        if state.selected % rule.every:
            return False
        if rule.probability is not None and state.rng.random() >= rule.probability:
            return False
        if rule.most is not None:
            place = _dest_qp(datagram), _psn(datagram)
            if state.done[place] >= rule.most:
                return False
            state.done[place] += 1
        state.spent = rule.once
        return True

    def _matches(self, rule: FaultRule, datagram: bytes, flow: Flow) -> bool:
        """The selectors that look at nothing but the packet and its queue pair."""
        if len(datagram) < BTH.SIZE + ICRC_SIZE:
            return rule.qp is None and rule.psns is None and rule.opcodes is None
        if rule.byte is not None and rule.byte >= len(datagram):
            return False
        if rule.opcodes is not None:
            opcode = datagram[0]
            if opcode not in rule.opcodes.values:
                return False
            if rule.opcodes.kind is not None and (
                opcode != Op.ACKNOWLEDGE or aeth_kind(datagram[BTH.SIZE]) is not rule.opcodes.kind
            ):
                return False
        if rule.qp is not None and rule.qp != _dest_qp(datagram):
            qp = self._queue_pair(datagram, flow)
            if qp is None or qp.qp_num != rule.qp:
                return False
        return rule.psns is None or self._in_psns(rule.psns, datagram, flow)

    def _in_psns(self, psns: PsnRange, datagram: bytes, flow: Flow) -> bool:
        psn, first = _psn(datagram), 0
        if psns.relative:
            qp = self._queue_pair(datagram, flow)
            if qp is None:
                return False
            # Responses carry the PSNs of the requests that they answer.
            info = OPCODES.get(datagram[0])
            is_request = info is None or info.is_request
            own = is_request is (self._direction is Direction.TX)
            first = qp.attr.sq_psn if own else qp.attr.rq_psn
        return 0 <= psn_diff(psn, first + psns.first) <= psn_diff(psns.last, psns.first)

    def _queue_pair(self, datagram: bytes, flow: Flow) -> QueuePair | None:
        """Our end of the connection that a packet belongs to."""
        dest_qp = _dest_qp(datagram)
        if self._direction is Direction.RX:
            return self._device.qps.get(dest_qp)
        for qp in self._device.qps.values():
            if qp.dest_qp_num == dest_qp and qp.attr.av.address == flow.destination:
                return qp
        return None

    # ------------------------------------------------------------------ waiting

    def _wait(self, passing: Passing, due: float, behind: int) -> None:
        self._count += 1
        heapq.heappush(self._waiting, _Waiting(due, self._count, passing, behind))

    def _overtake(self) -> list[Passing]:
        """A packet goes by those that are held back: gives the ones that have waited enough."""
        if not self._waiting:
            return []
        freed = []
        for waiting in self._waiting:
            if waiting.behind:
                waiting.behind -= 1
                if not waiting.behind:
                    freed.append(waiting)
        for waiting in freed:
            self._waiting.remove(waiting)
        if freed:
            heapq.heapify(self._waiting)
        return [waiting.passing for waiting in sorted(freed)]


_DONE = {
    Action.DUP: "copied",
    Action.DELAY: "delayed",
    Action.REORDER: "held back",
    Action.CORRUPT: "corrupted",
    Action.BAD_ICRC: "ICRC made wrong",
    Action.CE: "marked CE",
}


def _comment(notes: list[str]) -> str | None:
    return "fault: " + "; ".join(notes) if notes else None


def _dest_qp(datagram: bytes) -> int:
    return int.from_bytes(datagram[5:8])


def _psn(datagram: bytes) -> int:
    return int.from_bytes(datagram[9:12])


def _flip(datagram: bytes, place: int | None, rng: random.Random) -> bytes:
    place = rng.randrange(len(datagram)) if place is None else place
    changed = bytearray(datagram)
    changed[place] ^= 0xFF
    return bytes(changed)


def wrong_icrc(datagram: bytes, flow: Flow) -> bytes:
    """A datagram with an ICRC that is wrong for every IP ID: of others one in 65,536 is right for
    some ID, and a receiver may solve for it."""
    body, icrc = datagram[:-ICRC_SIZE], int.from_bytes(datagram[-ICRC_SIZE:])
    wrongs = (body + (icrc ^ flip).to_bytes(ICRC_SIZE) for flip in range(1, 1 << 32))
    return next(wrong for wrong in wrongs if not verify(wrong, flow)[0])
