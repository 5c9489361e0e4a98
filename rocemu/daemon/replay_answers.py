"""Captured answers against live ones, packet by packet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rocemu.daemon.replay_script import Step
from rocemu.wire import (
    AethKind,
    Operation,
    Packet,
    aeth_kind,
    describe_syndrome,
    opcode_name,
    psn_add,
    psn_diff,
)

__all__ = ["Answers", "Difference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A captured answer that did not come, came otherwise, or a live one that was not captured."""

    number: int | None
    """The captured packet's; None for a live answer that has none."""
    problems: tuple[str, ...]


@dataclass(slots=True)
class Answers:
    """Takes captured answers and live ones, both in order, and says where they differ.

    Acknowledges may cover one another: one that the next answer includes makes no difference,
    whichever side left it out, for a responder may coalesce them.  MSNs are compared as they are
    when the capture shows the connection being made (``msn_offset`` 0); else relative to the first.
    """

    psn_offset: int
    receive: Callable[[float], Packet | None]
    """The next live answer, waiting for some seconds."""
    patience: float = 2.0
    msn_offset: int | None = None
    compared: int = 0
    coalesced: int = 0
    _waiting: deque[Packet] = field(default_factory=deque)

    def compare(self, step: Step) -> Difference | None:
        """Hold the next live answer against a captured one."""
        captured = step.packet.packet
        if captured is None:
            return None  # the other end sent something unreadable: nothing to compare with
        while True:
            live = self._next(self.patience)
            if live is None:
                self.patience = min(self.patience, 0.25)  # one silence is enough to wait for
                self.compared += 1
                return Difference(step.packet.number, ("no answer came",))
            ahead = psn_diff(self._psn(live), captured.bth.psn)
            if ahead < 0 and _is_ack(live):
                self.coalesced += 1
                continue
            if ahead > 0 and _is_ack(captured):
                self.coalesced += 1
                self._waiting.appendleft(live)
                return None
            break
        self.compared += 1
        problems = tuple(self._problems(captured, live))
        return Difference(step.packet.number, problems) if problems else None

    def keep(self, live: Packet) -> None:
        """A live answer that came before anybody asked for it."""
        self._waiting.append(live)

    def rest(self, seconds: float) -> list[Difference]:
        """Live answers that come in ``seconds`` and have no captured counterpart."""
        found = []
        while (live := self._next(seconds)) is not None:
            found.append(Difference(None, (f"not captured: {self._describe(live)}",)))
        return found

    def _next(self, seconds: float) -> Packet | None:
        return self._waiting.popleft() if self._waiting else self.receive(seconds)

    def _psn(self, live: Packet) -> int:
        """The PSN that the capture would show."""
        return psn_add(live.bth.psn, -self.psn_offset)

    def _describe(self, live: Packet) -> str:
        said = f"{opcode_name(live.bth.opcode)} PSN {self._psn(live)}"
        if live.aeth is not None:
            said += f" {describe_syndrome(live.aeth.syndrome)}"
        return said

    def _problems(self, captured: Packet, live: Packet) -> list[str]:
        found = []
        if live.bth.opcode != captured.bth.opcode:
            names = opcode_name(live.bth.opcode), opcode_name(captured.bth.opcode)
            found.append(f"opcode {names[0]}, captured {names[1]}")
        if self._psn(live) != captured.bth.psn:
            found.append(f"PSN {self._psn(live)}, captured {captured.bth.psn}")
        if live.aeth is not None and captured.aeth is not None:
            if live.aeth.syndrome != captured.aeth.syndrome:
                came, was = (describe_syndrome(p.aeth.syndrome) for p in (live, captured) if p.aeth)
                found.append(f"{came}, captured {was}")
            if self.msn_offset is None:
                self.msn_offset = psn_diff(live.aeth.msn, captured.aeth.msn)
            if live.aeth.msn != psn_add(captured.aeth.msn, self.msn_offset):
                found.append(f"MSN {live.aeth.msn}, captured {captured.aeth.msn}")
        if live.atomicacketh is not None and captured.atomicacketh is not None:
            came_data, was_data = live.atomicacketh.original, captured.atomicacketh.original
            if came_data != was_data:
                found.append(f"original data {came_data:#x}, captured {was_data:#x}")
        if bytes(live.payload) != bytes(captured.payload):
            found.append(_data_problem(bytes(live.payload), bytes(captured.payload)))
        return found


def _data_problem(live: bytes, captured: bytes) -> str:
    if len(live) != len(captured):
        return f"{len(live)} bytes of data, captured {len(captured)}"
    at = next(i for i, (a, b) in enumerate(zip(live, captured, strict=True)) if a != b)
    return f"data at byte {at}: {live[at : at + 8].hex()}, captured {captured[at : at + 8].hex()}"


def _is_ack(packet: Packet) -> bool:
    return (
        packet.info.operation is Operation.ACKNOWLEDGE
        and packet.aeth is not None
        and aeth_kind(packet.aeth.syndrome) is AethKind.ACK
    )
