"""A scenario is played: each line of the script done or waited for, until one comes out otherwise.

What is expected of one kind (packets, completions, events) must come in the order of the script and
nothing else of that kind: what no line names is a difference too.  Packets count only if the script
names any.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rocemu.protection import RegistrationError
from rocemu.scenario.actions import Actor
from rocemu.scenario.compare import differences, spell, spell_completion
from rocemu.scenario.data import spell_data
from rocemu.scenario.model import (
    AnyPackets,
    CompletionText,
    DropText,
    EventText,
    MemoryText,
    PacketText,
    Scenario,
    StateText,
    Step,
    ViolationText,
)
from rocemu.scenario.script import ACTIONS
from rocemu.scenario.world import DeviceEnd, OnWire, World
from rocemu.transport import QPError

__all__ = ["Line", "Report", "play"]


@dataclass(slots=True)
class Line:
    """A line of the script and how it came out."""

    step: Step | None
    """None: the end of the script."""
    text: str
    when: float
    """Virtual time in seconds."""
    came: str = ""
    """What came in its place; empty when it came out as expected."""


@dataclass(slots=True)
class Report:
    """What became of a scenario."""

    scenario: Scenario
    world: World
    """Both ends as they are in the end."""
    lines: list[Line] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    """After a difference: what else had come by then and no line had taken."""

    @property
    def difference(self) -> Line | None:
        return self.lines[-1] if self.lines and self.lines[-1].came else None

    @property
    def good(self) -> bool:
        return self.difference is None


class _Difference(Exception):  # noqa: N818 - no error
    """Something else came than was expected."""


def play(scenario: Scenario, on_wire: Callable[[OnWire], None] | None = None) -> Report:
    """Run a scenario; the report ends with the first difference.

    ``on_wire`` is called with every packet that leaves its sender.
    """
    return Player(scenario, World(scenario, on_wire)).play()


class Player:
    """Plays a script in a world; ``absent`` plays his part elsewhere, and only sends packets."""

    def __init__(self, scenario: Scenario, world: World, absent: str | None = None) -> None:
        self._scenario = scenario
        self.world = world
        self._absent = absent
        self._actor = Actor(self.world)
        self._last = 0.0
        """When the line before was done or came."""
        self._any_packets = False

    def play(self) -> Report:
        """Do and expect what the script says, up to the first difference."""
        report = Report(self._scenario, self.world)
        try:
            for step in self._scenario.steps:
                if self._is_elsewhere(step):
                    continue
                report.lines.append(Line(step, step.text, self.world.now))
                self._do(step)
                report.lines[-1].when = self._last
            report.lines.append(Line(None, "nothing else comes", self.world.now))
            self._finish()
        except _Difference as difference:
            report.lines[-1].came = str(difference)
            report.lines[-1].when = self.world.now
            report.also = self._left_over()
        return report

    def _do(self, step: Step) -> None:
        if isinstance(step.what, AnyPackets):
            self._any_packets = True
        elif self._is_done(step):
            self.world.run(self._last + step.delay if step.delay else self.world.now)
            try:
                self._actor.act(step)
            except (QPError, RegistrationError, ValueError) as error:
                raise _Difference(str(error)) from None
            self.world.settle()
            self._last = self.world.now
        else:
            _EXPECTATIONS[type(step.what)](self, step)

    def _is_elsewhere(self, step: Step) -> bool:
        return step.who is not None and step.who == self._absent and not _is_packet(step)

    def _is_done(self, step: Step) -> bool:
        if _is_packet(step):
            return self.world.end(step.who).spec.raw
        return isinstance(step.what, ACTIONS)

    # ------------------------------------------------------------------ expectations

    def _next(self, step: Step, queue: deque[Any], come: Callable[[], bool] = lambda: True) -> Any:
        """Wait for the next entry of a queue, in the step's window; its time becomes the last."""
        least, most = step.window or (0.0, self._scenario.limit)
        most = min(most, self._scenario.limit)
        until = max(self._last + most, self.world.now)
        while not (come() and queue):
            if not self.world.advance(max(until, self.world.begins_by)):
                raise _Difference(f"nothing within {_time(most)}")
        entry = queue[0]
        when = entry.when if isinstance(entry, OnWire) else entry[0]
        after = when - self._last
        if step.window and not least - 1e-9 <= after <= most + 1e-9:
            raise _Difference(f"{_time(after)} after the line before")
        return entry

    def _packet(self, step: Step) -> None:
        while True:
            entry = self._next(step, self.world.wire)
            wrong = differences(self.world, step.what, entry)
            if wrong and not self._any_packets:
                raise _Difference(f"{spell(self.world, entry)}   ({'; '.join(wrong)})")
            self.world.wire.popleft()
            if not wrong:
                break
        self._any_packets = False
        self._last = entry.when

    def _completion(self, step: Step) -> None:
        what: CompletionText = step.what
        end = self.world.device_end(step.who)
        queue = end.received if what.receive else end.completions

        def poll() -> bool:
            end.poll(what.receive, self.world.now)
            return True

        when, came = self._next(step, queue, poll)
        fields = {name: getattr(came, name) for name in what.fields}
        if (came.wr_id, came.status, fields) != (what.wr_id, what.status, what.fields):
            raise _Difference(spell_completion(came))
        queue.popleft()
        self._last = when

    def _event(self, step: Step) -> None:
        end = self.world.device_end(step.who)
        when, came = self._next(step, end.events)
        if came is not step.what.type:
            raise _Difference(came.name)
        end.events.popleft()
        self._last = when

    def _violation(self, step: Step) -> None:
        end = self.world.device_end(step.who)
        when, came = self._next(step, end.violations)
        if tuple(came.verdict.causes) != step.what.causes:
            raise _Difference(came.verdict.describe())
        end.violations.popleft()
        self._last = when

    def _drop(self, step: Step) -> None:
        end = self.world.device_end(step.who)
        when, came = self._next(step, end.drops)
        if came.reason != step.what.reason:
            raise _Difference(f"{came.reason}: {came.detail}")
        end.drops.popleft()
        self._last = when

    def _state(self, step: Step) -> None:
        """States and memory are as they are now, or become so within the window."""
        qp = self.world.device_end(step.who).qp
        self._becomes(step, lambda: qp.state is step.what.state, lambda: qp.state.name)

    def _memory(self, step: Step) -> None:
        what: MemoryText = step.what
        region = self.world.device_end(step.who).regions[what.place.name]
        start, end = what.place.offset, what.place.offset + len(what.data)

        def came() -> str:
            now = bytes(region.memory[start:end])
            if len(now) < len(what.data):
                return f"{region.name} has {region.length} bytes"
            place = next(i for i, byte in enumerate(what.data) if now[i] != byte)
            there = f"; the first other byte is at {region.name}+{start + place}" if place else ""
            return spell_data(now) + there

        self._becomes(step, lambda: bytes(region.memory[start:end]) == what.data, came)

    def _becomes(self, step: Step, true: Callable[[], bool], came: Callable[[], str]) -> None:
        until = self._last + (step.window[1] if step.window else 0.0)
        while not true():
            if not self.world.advance(min(until, self._last + self._scenario.limit)):
                raise _Difference(came())

    # ------------------------------------------------------------------ the end

    def _finish(self) -> None:
        self.world.run_until_quiet(self._scenario.limit)
        left = self._left_over()
        if left:
            raise _Difference(left[0])

    def _left_over(self) -> list[str]:
        """What came and no line has taken, without violations and drops, which only explain."""
        left = []
        if self._scenario.wire and not self._any_packets:
            left += [spell(self.world, entry) for entry in self.world.wire]
        for end in self.world.ends:
            if isinstance(end, DeviceEnd):
                name = end.spec.name
                for receive, queue in ((False, end.completions), (True, end.received)):
                    end.poll(receive, self.world.now)
                    verb = "receive" if receive else "completion"
                    left += [f"{name}: {verb} {spell_completion(came)}" for _, came in queue]
                left += [f"{name}: event {type_.name}" for _, type_ in end.events]
        return left


def _is_packet(step: Step) -> bool:
    return isinstance(step.what, PacketText)


_EXPECTATIONS: dict[type, Callable[[Player, Step], None]] = {
    PacketText: Player._packet,
    CompletionText: Player._completion,
    EventText: Player._event,
    ViolationText: Player._violation,
    DropText: Player._drop,
    StateText: Player._state,
    MemoryText: Player._memory,
}


def _time(seconds: float) -> str:
    """``67.1 ms``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"
